//! SQLite: locks, mapped indexes and syncs in the order that a database needs, by several processes at once.

use super::ground::Ground;
use super::program::Program;
use super::{Effort, Suite};

pub(super) const SUITE: Suite = Suite {
    name: "sqlite",
    about: "two processes in one database, with journals of all kinds",
    needs: &["sqlite3"],
    run,
};

/// Journal modes; all but `wal` roll back.
const JOURNALS: [&str; 4] = ["wal", "delete", "truncate", "persist"];
const WRITERS: u32 = 2;
/// Transactions of each writer.
const TRANSACTIONS: (u32, u32) = (3_000, 200);

fn run(ground: &mut Ground, effort: &Effort) -> Result<String, String> {
    let transactions = effort.pick(TRANSACTIONS.0, TRANSACTIONS.1);
    let log = ground.log().to_owned();
    for journal in JOURNALS {
        let file = ground.path().join(format!("{journal}.db"));
        let sqlite = || Program::new("sqlite3").args("-batch -bail").arg(&file).seconds(effort.pick(600, 60));
        let create =
            "CREATE TABLE t (id INTEGER PRIMARY KEY, writer INTEGER, n INTEGER, text TEXT, UNIQUE (writer, n));";
        sqlite().input(format!("PRAGMA journal_mode={journal};\n{create}\n")).run(&log)?;
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| sqlite().input(script(journal, writer, transactions)).start(&log))
            .collect::<Result<_, _>>()?;
        // A reader beside them sees whole transactions only.
        for _ in 0..10 {
            let read = ".timeout 60000\nPRAGMA mmap_size=268435456;\nSELECT count(*) % 3 FROM t;\n";
            let seen = sqlite().input(read).output(&log)?;
            if seen.lines().last() != Some("0") {
                return Err(format!("{journal}: a reader saw a part of a transaction: {seen}"));
            }
        }
        for writer in writers {
            writer.end().map_err(|message| format!("{journal}: {message}"))?;
        }
        check(&sqlite(), journal, transactions, &log)?;
    }
    let source = ground.settle()?;
    for journal in JOURNALS {
        let sqlite = Program::new("sqlite3").args("-batch -bail").arg(source.join(format!("{journal}.db")));
        check(&sqlite, journal, transactions, &log).map_err(|message| format!("in the source: {message}"))?;
    }
    Ok(format!("{} journal modes, {WRITERS} writers of {transactions} transactions each", JOURNALS.len()))
}

/// Three rows per transaction; some transactions are rolled back.
fn script(journal: &str, writer: u32, transactions: u32) -> String {
    let mut text = format!(".timeout 60000\nPRAGMA journal_mode={journal};\nPRAGMA mmap_size=67108864;\n");
    for n in 0..transactions {
        let row = |row: u32| {
            let number = n * 3 + row;
            format!(
                "INSERT INTO t (writer, n, text) VALUES ({writer}, {number}, printf('%.*c', {}, 'x'));\n",
                n * 7 % 3000
            )
        };
        text += &format!("BEGIN IMMEDIATE;\n{}{}{}COMMIT;\n", row(0), row(1), row(2));
        if n % 10 == 0 {
            text += "BEGIN IMMEDIATE;\nDELETE FROM t;\nROLLBACK;\n";
        }
    }
    text
}

fn check(sqlite: &Program, journal: &str, transactions: u32, log: &std::path::Path) -> Result<(), String> {
    let question = "PRAGMA integrity_check;\nSELECT count(*), sum(n), sum(length(text) > 0) > 0 FROM t;\n";
    let rows = u64::from(transactions) * 3;
    let sum = u64::from(WRITERS) * (rows * (rows - 1) / 2);
    let expected = format!("ok\n{}|{sum}|1", u64::from(WRITERS) * rows);
    let answer = sqlite.clone().input(question).output(log)?;
    if answer.trim() == expected { Ok(()) } else { Err(format!("{journal}: {answer:?} instead of {expected:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_as_many_transactions_as_asked_for() {
        let script = script("wal", 1, 20);
        assert_eq!(script.matches("COMMIT").count(), 20);
        assert_eq!(script.matches("ROLLBACK").count(), 2);
        assert!(script.contains("(1, 59, "), "{script}");
    }
}

//! The part of `status` about tenants: the figures of all, and lines about those with the most data in the cache.

use std::cmp::Reverse;
use std::time::Duration;

use humantime::format_duration;
use slackwater::{Engine, MemcgId, MemcgState, SuperBlock, TenantStatus};
use slackwater_control::protocol::{Container, REPLY_BYTES_MAX, Status, Tenant, TenantState};
use slackwater_host::Printable as _;
use slackwater_host::size;

use crate::pods::Pods;

/// Tenants that are described in text.
const LINES: usize = 10;
/// The part of a reply for tenants. Further tenants are only counted, because their names are chosen by others.
const REPLY_PART: usize = REPLY_BYTES_MAX / 2;
/// Maximum size of the figures of one tenant in a reply, and of one byte of its name.
const FIGURES_BYTES: usize = 512;
const NAME_BYTE_BYTES: usize = 6;

/// Milliseconds, as in messages.
pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The tenants with data on `volume`, sorted by data in the cache, most first.
pub(super) fn of(volume: &SuperBlock, pods: &Pods) -> Vec<Tenant> {
    sorted(volume.tenants(), pods)
}

/// All tenants of `engine`, with their data on all volumes together, most first.
pub(crate) fn of_all(engine: &Engine, pods: &Pods) -> Vec<Tenant> {
    sorted(engine.tenants(), pods)
}

fn sorted(tenants: Vec<TenantStatus>, pods: &Pods) -> Vec<Tenant> {
    let of = |status: TenantStatus| Tenant { container: pods.container(&status.name), ..tenant_of(status) };
    let mut tenants: Vec<_> = tenants.into_iter().map(of).collect();
    tenants.sort_by_cached_key(|tenant| (Reverse(tenant.held_bytes()), tenant.id));
    tenants
}

/// Truncates `tenants` to what a reply holds. Returns how many were removed.
pub(crate) fn fit_reply(tenants: &mut Vec<Tenant>) -> u64 {
    tenants.split_off(count_that_fits(tenants)).len() as u64
}

fn count_that_fits(tenants: &[Tenant]) -> usize {
    let mut left = REPLY_PART;
    let fits = |tenant: &&Tenant| {
        let bytes = FIGURES_BYTES + NAME_BYTE_BYTES * tenant.name.len() + tenant.container.message_bytes();
        left.checked_sub(bytes).inspect(|rest| left = *rest).is_some()
    };
    tenants.iter().take_while(fits).count()
}

/// The figures of a tenant, as messages have them.
fn tenant_of(status: TenantStatus) -> Tenant {
    Tenant {
        id: status.id.as_u64(),
        state: match status.state {
            MemcgState::Online => TenantState::Online,
            MemcgState::Dying => TenantState::Dying,
            MemcgState::Offline | MemcgState::Released => TenantState::Offline,
        },
        limit_bytes: status.limit_bytes,
        charged_bytes: status.charged_bytes,
        dirty_bytes: status.dirty_bytes,
        writeback_bytes: status.writeback_bytes,
        unstable_bytes: status.unstable_bytes,
        written_bytes: status.written_bytes,
        cached_bytes: status.cached_bytes,
        hits: status.read_hits,
        misses: status.read_misses,
        oldest_ms: status.oldest.map(ms),
        paused_ms: ms(status.paused),
        wants_room: status.is_at_limit,
        name: status.name,
        parent: status.parent.map(MemcgId::as_u64),
        container: Container::default(),
    }
}

/// A line for people about a tenant, which is one of `all`.
pub(crate) fn line(tenant: &Tenant, all: &[Tenant]) -> String {
    let bytes = size::text;
    let limit = tenant.limit_bytes.map(|limit| format!(" of {}", bytes(limit))).unwrap_or_default();
    let mut line = format!(
        "{}: {}{limit} (dirty {}, being written {}, not yet durable {})",
        tenant.label(),
        bytes(tenant.held_bytes()),
        bytes(tenant.dirty_bytes),
        bytes(tenant.writeback_bytes),
        bytes(tenant.unstable_bytes)
    );
    if let Some(ms) = tenant.oldest_ms {
        line += &format!(", oldest {}", time(ms));
    }
    line += &format!("; written back {}", bytes(tenant.written_bytes));
    if tenant.paused_ms > 0 {
        line += &format!("; writers paused {}", time(tenant.paused_ms));
    }
    if tenant.wants_room {
        line += "; AT ITS LIMIT: its writers are blocked";
    }
    match tenant.state {
        TenantState::Online => {}
        TenantState::Dying | TenantState::Offline => line += "; removed",
    }
    if let Some(parent) = tenant.parent.and_then(|id| all.iter().find(|tenant| tenant.id == id)) {
        line += &format!("; within {}", parent.label());
    }
    if tenant.container != Container::default() {
        line += &format!("; cgroup {}", tenant.name.printable());
    }
    line
}

/// Lines for the tenants with the most data; none if there is only one tenant.
pub(crate) fn lines(status: &Status) -> Vec<String> {
    let count = status.tenants.len() as u64 + status.more_tenants;
    if count < 2 {
        return Vec::new();
    }
    let mut lines = vec![format!("tenants: {count}")];
    lines.extend(status.tenants.iter().take(LINES).map(|tenant| format!("  {}", line(tenant, &status.tenants))));
    let more = &status.tenants[LINES.min(status.tenants.len())..];
    let more_count = more.len() as u64 + status.more_tenants;
    if more_count > 0 {
        let most = more.first().map(|tenant| format!(", {} each at most", size::text(tenant.held_bytes())));
        lines.push(format!("  and {more_count} more{}; --json lists them all", most.unwrap_or_default()));
    }
    lines
}

/// A time as `status` shows it.
pub(crate) fn time(ms: u64) -> String {
    // The first two parts are precise enough.
    let rounded = if ms < 10_000 { ms } else { ms / 1000 * 1000 };
    format_duration(Duration::from_millis(rounded)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackwater_control::protocol::{Message, Reply};

    fn tenant(id: u64, name: &str, charged_bytes: u64) -> Tenant {
        Tenant {
            limit_bytes: Some(4 << 20),
            charged_bytes,
            dirty_bytes: charged_bytes / 2,
            written_bytes: 1 << 20,
            oldest_ms: Some(12_345),
            paused_ms: 1500,
            ..Tenant::sample(id, name)
        }
    }

    fn status(tenants: Vec<Tenant>, more_tenants: u64) -> Status {
        Status { tenants, more_tenants, ..Status::sample() }
    }

    #[test]
    fn the_ten_with_most_are_described_and_the_others_counted() {
        let root = tenant(0, "root", 0);
        assert_eq!(lines(&status(vec![root.clone()], 0)), Vec::<String>::new(), "all are one");
        let mut tenants: Vec<_> = (1..=3000).map(|id| tenant(id, &format!("/c/{id}"), (4000 - id) << 10)).collect();
        tenants.push(root);
        let lines = lines(&status(tenants, 7));
        assert_eq!(lines.len(), 12, "{lines:?}");
        assert_eq!(lines[0], "tenants: 3008");
        assert!(lines[1].starts_with("  /c/1: 3.9 MiB of 4.0 MiB (dirty "), "{}", lines[1]);
        assert!(lines[1].ends_with("oldest 12s; written back 1.0 MiB; writers paused 1s 500ms"), "{}", lines[1]);
        assert!(lines[10].starts_with("  /c/10: "), "{}", lines[10]);
        assert!(lines[11].contains("2998 more, 3.9 MiB each at most"), "{}", lines[11]);
    }

    #[test]
    fn notable_states_are_shown() {
        let mut odd = tenant(1, "/a", 4 << 20);
        (odd.wants_room, odd.state, odd.limit_bytes) = (true, TenantState::Offline, None);
        (odd.oldest_ms, odd.paused_ms) = (None, 0);
        let line = line(&odd, &[]);
        assert!(line.starts_with("/a: 4.0 MiB (dirty 2.0 MiB"), "{line}");
        assert!(line.ends_with("written back 1.0 MiB; AT ITS LIMIT: its writers are blocked; removed"), "{line}");
    }

    #[test]
    fn hostile_names_stay_on_their_line() {
        let names = ["", "a b", "/x\n/root: 0 B", "/\"'$(id)`", "/\u{1b}[2J\r", "/\u{202e}gnp", "/\u{fffd}\\", "\u{0}"];
        for name in names {
            let line = line(&tenant(1, name, 0), &[]);
            assert!(!line.starts_with(':') && line.bytes().all(|byte| byte >= b' '), "{line:?}");
            assert!(!line.contains(['\u{1b}', '\u{202e}', '\u{7f}']), "{line:?}");
        }
        assert!(line(&tenant(1, "/a'b", 0), &[]).starts_with("/a'b: "));
    }

    #[test]
    fn a_reply_with_any_tenants_is_not_too_long() {
        let name = "\u{1}".repeat(4096);
        let tenants: Vec<_> = (0..10_000).map(|id| tenant(id, &name, u64::MAX / 2)).collect();
        let fit = count_that_fits(&tenants);
        assert!((100..10_000).contains(&fit), "{fit}");
        let reply = Reply::Status(Box::new(status(tenants[..fit].to_vec(), (tenants.len() - fit) as u64)));
        let line = Message::new(&reply).line();
        assert!(line.len() < REPLY_BYTES_MAX * 3 / 4, "{}", line.len());
        assert_eq!(serde_json::from_slice::<Message<Reply>>(&line).unwrap().body, reply);
        let short: Vec<_> = (0..10_000).map(|id| tenant(id, "/kubepods.slice/pod12345", u64::MAX / 2)).collect();
        assert_eq!(count_that_fits(&short), 10_000);
    }
}

//! Lists in pages. The token of a page has the id before it, so volumes that come and go meanwhile shift nothing.

use tonic::Status;

use crate::volumes::Record;

const PREFIX: &str = "after:";

/// The page of `sorted` that a request asks for, and the token of the next one, which is empty after the last.
///
/// # Errors
/// The number of entries is negative; `Aborted`, if the token is none of ours.
pub(super) fn page(sorted: Vec<Record>, max_entries: i32, token: &str) -> Result<(Vec<Record>, String), Status> {
    let most = match usize::try_from(max_entries) {
        Ok(0) => usize::MAX,
        Ok(most) => most,
        Err(_) => return Err(Status::invalid_argument("max_entries is negative")),
    };
    let after = match (token, token.strip_prefix(PREFIX)) {
        ("", _) => "",
        (_, Some(id)) => id,
        (_, None) => return Err(Status::aborted("starting_token is not one of this plugin; begin without one")),
    };
    let mut rest = sorted.into_iter().filter(|record| record.id.as_str() > after).peekable();
    let page: Vec<_> = rest.by_ref().take(most).collect();
    let next = match (rest.peek(), page.last()) {
        (Some(_), Some(last)) => format!("{PREFIX}{}", last.id),
        _ => String::new(),
    };
    Ok((page, next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::volumes::Pool;

    fn records(ids: &[&str]) -> Vec<Record> {
        let record = |id: &&str| Record {
            id: (*id).to_owned(),
            name: (*id).to_owned(),
            pool: Pool::Directory("/srv".into()),
            source: format!("/srv/{id}"),
            bytes: None,
            limits: Limits::default(),
            has_credentials: false,
        };
        ids.iter().map(record).collect()
    }

    fn ids(page: &[Record]) -> Vec<&str> {
        page.iter().map(|record| record.id.as_str()).collect()
    }

    #[test]
    fn pages_show_each_volume_once_even_if_others_come_and_go() {
        let (first, token) = page(records(&["a", "b", "c", "d"]), 2, "").unwrap();
        assert_eq!(ids(&first), ["a", "b"]);
        let (second, end) = page(records(&["a", "aa", "c", "d"]), 2, &token).unwrap();
        assert_eq!((ids(&second), end.as_str()), (vec!["c", "d"], ""));
        let (all, end) = page(records(&["a", "b"]), 0, "").unwrap();
        assert_eq!((all.len(), end.as_str()), (2, ""));
        assert_eq!(page(Vec::new(), 1, "").unwrap(), (Vec::new(), String::new()));
    }

    #[test]
    fn a_foreign_token_is_aborted_and_a_negative_number_invalid() {
        assert_eq!(page(Vec::new(), 0, "invalid-token").unwrap_err().code(), tonic::Code::Aborted);
        assert_eq!(page(Vec::new(), -1, "").unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}

//! What is varied beside the unmounts.

use crate::programs::Tenants;

/// Whose writers are beside, and whether a source hangs.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) struct Cell {
    pub(super) tenants: Tenants,
    pub(super) beside_hung: bool,
}

impl Cell {
    /// Those where sources answer, and where one does not.
    pub(super) fn of(beside_hung: bool) -> [Self; 2] {
        [Tenants::Steady, Tenants::Fresh].map(|tenants| Self { tenants, beside_hung })
    }

    /// How tables and targets call it.
    pub(super) fn name(self) -> &'static str {
        match (self.tenants, self.beside_hung) {
            (Tenants::Steady, false) => "control",
            (Tenants::Fresh, false) => "churn",
            (Tenants::Steady, true) => "control, a source hangs",
            (Tenants::Fresh, true) => "churn, a source hangs",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_names_of_their_own() {
        let cells = [Cell::of(false), Cell::of(true)].concat();
        let names: std::collections::BTreeSet<_> = cells.into_iter().map(Cell::name).collect();
        assert_eq!(names.len(), 4);
    }
}

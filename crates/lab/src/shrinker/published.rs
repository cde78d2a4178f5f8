//! What was published of three registries of the kernel: nine stressors that mount a ramfs, work in it and unmount it, for a
//! minute; sem. 12.3 and 10.4. A machine a column.

/// Cycles a second.
pub(crate) struct Published {
    pub(crate) registry: &'static str,
    /// 24 CPUs.
    pub(crate) comparison: Option<f64>,
    /// 32 CPUs.
    pub(crate) reproduction: Option<f64>,
}

pub(crate) const PUBLISHED: [Published; 4] = [
    Published { registry: "rwsem", comparison: Some(7884.12), reproduction: Some(12_915.89) },
    Published { registry: "srcu", comparison: None, reproduction: Some(2811.08) },
    Published { registry: "srcu, expedited", comparison: None, reproduction: Some(11_834.18) },
    Published { registry: "refcount_rcu", comparison: Some(7952.55), reproduction: None },
];

//! The text of a snapshot in the OpenMetrics format.

use std::collections::HashMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{self, Registry};
use slackwater_control::protocol::{Container, Tenant};

use crate::metrics::bounds::{Bounded, Item, Row, TENANTS_MAX, VOLUMES_MAX};
use crate::metrics::catalogue::{ENGINE, Kind, Metric, OBJECT, PROCESS, TENANT, TENANT_ON_VOLUME, Unit, VOLUME};
use crate::metrics::{Snapshot, Unmounts};

/// The content type of the page.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;

/// A metric with all its series.
#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    unit: Option<registry::Unit>,
    kind: Kind,
    series: Vec<(Labels, f64)>,
}

/// A whole page; the encoder wants to own it.
#[derive(Debug)]
struct Page {
    families: Vec<Family>,
    /// The labels of each container or pod that is a tenant.
    containers: Vec<Labels>,
    /// The labels of each tenant that is below another one.
    parents: Vec<Labels>,
    unmounts: Unmounts,
}

/// Turns snapshots into text, each time in full. Its state is that of [`Bounded`].
#[derive(Debug, Default)]
pub(super) struct Renderer {
    volumes: Bounded<String>,
    tenants: Bounded<u64>,
    on_volumes: HashMap<String, Bounded<u64>>,
}

impl Renderer {
    /// The page for `snapshot`.
    pub(super) fn render(&mut self, snapshot: &Snapshot) -> String {
        let mut families = Vec::new();
        let engine = snapshot.engine.as_ref().map(|engine| (Labels::new(), row(&ENGINE, engine)));
        add(&mut families, &ENGINE, &Vec::from_iter(engine));
        add(&mut families, &PROCESS, &[(Labels::new(), row(&PROCESS, snapshot))]);
        let volumes = self.volume_rows(snapshot);
        let named: Vec<_> = volumes.iter().map(|(name, _)| name.clone()).collect();
        add(&mut families, &VOLUME, &labelled("volume", volumes));
        let objects = object_rows(snapshot, &named);
        if !objects.is_empty() {
            add(&mut families, &OBJECT, &labelled("volume", objects));
        }
        add(&mut families, &TENANT_ON_VOLUME, &self.rows_on_volumes(snapshot, &named));
        let tenants = self.tenant_rows(snapshot);
        let (containers, parents) = (containers(snapshot, &tenants), parents(snapshot, &tenants));
        add(&mut families, &TENANT, &labelled("tenant", tenants));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Page {
            families,
            containers,
            parents,
            unmounts: snapshot.unmounts.clone(),
        }));
        let mut text = String::new();
        let encoded = text::encode(&mut text, &registry);
        debug_assert!(encoded.is_ok(), "a string takes everything");
        text
    }

    fn volume_rows(&mut self, snapshot: &Snapshot) -> Vec<Row> {
        let items = snapshot.volumes.iter().map(|(name, status)| Item {
            key: name.clone(),
            label: name,
            held_bytes: status.bytes_left,
            of: status,
        });
        self.volumes.rows(&VOLUME, VOLUMES_MAX, items)
    }

    /// The rows of the volumes that have their own series.
    fn rows_on_volumes(&mut self, snapshot: &Snapshot, named: &[String]) -> Vec<(Labels, Vec<Option<f64>>)> {
        let mut rows = Vec::new();
        let mut before = std::mem::take(&mut self.on_volumes);
        for (name, status) in snapshot.volumes.iter().filter(|(name, _)| named.contains(name)) {
            let mut bounded = before.remove(name).unwrap_or_default();
            for (tenant, values) in bounded.rows(&TENANT_ON_VOLUME, TENANTS_MAX, status.tenants.iter().map(item)) {
                rows.push((vec![("volume", name.clone()), ("tenant", tenant)], values));
            }
            self.on_volumes.insert(name.clone(), bounded);
        }
        rows
    }

    fn tenant_rows(&mut self, snapshot: &Snapshot) -> Vec<Row> {
        self.tenants.rows(&TENANT, TENANTS_MAX, snapshot.tenants.iter().map(item))
    }
}

/// The rows of the object volumes among those that have their own series.
fn object_rows(snapshot: &Snapshot, named: &[String]) -> Vec<Row> {
    let of_objects = snapshot.volumes.iter().filter(|(name, _)| named.contains(name));
    of_objects.filter_map(|(name, status)| Some((name.clone(), row(&OBJECT, status.object.as_ref()?)))).collect()
}

/// The labels of the containers and pods among the tenants that have their own series: as many as there are of these.
fn containers(snapshot: &Snapshot, rows: &[Row]) -> Vec<Labels> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let labels = |(name, _): &Row| {
        let tenant = snapshot.tenants.iter().find(|tenant| tenant.name == *name)?;
        let Container { namespace, pod, pod_uid, container_id, .. } = &tenant.container;
        (tenant.container != Container::default()).then(|| {
            vec![
                ("tenant", name.clone()),
                ("namespace", text(namespace)),
                ("pod", text(pod)),
                ("pod_uid", text(pod_uid)),
                ("container_id", text(container_id)),
            ]
        })
    };
    rows.iter().filter_map(labels).collect()
}

/// The labels of the tenants below others, among those that have their own series.
fn parents(snapshot: &Snapshot, rows: &[Row]) -> Vec<Labels> {
    let labels = |(name, _): &Row| {
        // The newest one of that name: what others still have is charged as it was before.
        let tenant = snapshot.tenants.iter().filter(|tenant| tenant.name == *name).max_by_key(|tenant| tenant.id)?;
        let parent = snapshot.tenants.iter().find(|above| Some(above.id) == tenant.parent)?;
        Some(vec![("tenant", name.clone()), ("parent", parent.name.clone())])
    };
    rows.iter().filter_map(labels).collect()
}

fn item(tenant: &Tenant) -> Item<'_, u64, Tenant> {
    Item { key: tenant.id, label: &tenant.name, held_bytes: tenant.held_bytes(), of: tenant }
}

fn row<T>(table: &[Metric<T>], of: &T) -> Vec<Option<f64>> {
    table.iter().map(|metric| (metric.value)(of)).collect()
}

fn labelled(label: &'static str, rows: Vec<Row>) -> Vec<(Labels, Vec<Option<f64>>)> {
    rows.into_iter().map(|(name, values)| (vec![(label, name)], values)).collect()
}

/// Adds the families of `table` with the series of `rows`.
fn add<T>(families: &mut Vec<Family>, table: &[Metric<T>], rows: &[(Labels, Vec<Option<f64>>)]) {
    families.extend(table.iter().enumerate().map(|(at, metric)| Family {
        name: metric.name,
        help: metric.help,
        unit: match metric.unit {
            Unit::None => None,
            Unit::Bytes => Some(registry::Unit::Bytes),
            Unit::Seconds => Some(registry::Unit::Seconds),
        },
        kind: metric.kind,
        series: rows.iter().filter_map(|(labels, values)| Some((labels.clone(), values[at]?))).collect(),
    }));
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        encoder
            .encode_descriptor("slackwater_build", "Version of the program", None, MetricType::Info)?
            .encode_info(&version)?;
        let help = "Each tenant that is a container or a pod, with its names as labels; always 1";
        let mut infos = encoder.encode_descriptor("slackwater_tenant", help, None, MetricType::Info)?;
        self.containers.iter().try_for_each(|labels| infos.encode_info(labels))?;
        let help = "Each tenant below another one with a limit, with the name of that; always 1";
        let mut infos = encoder.encode_descriptor("slackwater_tenant_parent", help, None, MetricType::Info)?;
        self.parents.iter().try_for_each(|labels| infos.encode_info(labels))?;
        for Family { name, help, unit, kind, series } in &self.families {
            let metric_type = if *kind == Kind::Counter { MetricType::Counter } else { MetricType::Gauge };
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), metric_type)?;
            for (labels, value) in series {
                if labels.is_empty() {
                    encode(&mut family, *kind, *value)?;
                } else {
                    encode(&mut family.encode_family(labels)?, *kind, *value)?;
                }
            }
        }
        let help = "Time from the request to the end of successful unmounts";
        let seconds = registry::Unit::Seconds;
        let histogram = encoder.encode_descriptor("slackwater_unmount", help, Some(&seconds), MetricType::Histogram)?;
        self.unmounts.seconds.encode(histogram)
    }
}

fn encode(to: &mut MetricEncoder<'_>, kind: Kind, value: f64) -> fmt::Result {
    match kind {
        Kind::Counter => to.encode_counter::<NoLabelSet, _, f64>(&value, None),
        Kind::Gauge | Kind::GaugeMax => to.encode_gauge(&value),
    }
}

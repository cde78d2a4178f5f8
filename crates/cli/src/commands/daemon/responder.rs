//! The answers of a daemon.

use std::sync::Arc;
use std::time::Duration;

use slackwater_control::exit::{Failure, Reason};
use slackwater_control::protocol::{Reply, Request, VolumeRef};

use crate::commands::daemon::volumes::Volumes;
use crate::control::{Limits, Respond};
use crate::volume::{mounting, tenants};

/// Enough for the unmounts and listeners of a script at the same time, with space for queries.
const CONNECTIONS_MAX: usize = 256;

/// Members of the socket's group may query.
pub(super) const LIMITS: Limits = Limits { connections_max: CONNECTIONS_MAX, others_may_query: true };

pub(super) struct Responder {
    volumes: Arc<Volumes>,
}

impl Responder {
    pub(super) fn new(volumes: Arc<Volumes>) -> Self {
        Self { volumes }
    }

    fn answer(&self, volume: &VolumeRef, request: Request, progress: &dyn Fn(Reply) -> bool) -> Result<Reply, Failure> {
        let volumes = &self.volumes;
        match (Some(volume).filter(|volume| !volume.is_empty()), request) {
            (None, Request::Mount(request)) => {
                let (name, mounted) = volumes.mount(&request)?;
                Ok(Reply::Mounted { name: name.to_string(), missing_features: mounting::missing_features(&mounted) })
            }
            (None, Request::List) => Ok(Reply::List(volumes.list())),
            (None, Request::Tenants) => {
                let mut tenants = tenants::of_all(&volumes.shared.engine, &volumes.shared.tally.pods);
                let more_tenants = tenants::fit_reply(&mut tenants);
                Ok(Reply::Tenants { tenants, more_tenants })
            }
            (None, Request::SetTenant { tenant, key, value }) => {
                volumes.set_tenant(&tenant, &key, &value).map(|()| Reply::Done)
            }
            (None, Request::Events) => {
                volumes.shared.events.follow(progress);
                Ok(Reply::Done)
            }
            (None, _) => Err(Failure::usage("the request names no volume")),
            (Some(volume), request) => {
                let (name, session) = match (volumes.find(volume), &request) {
                    (Err(failure), Request::Umount { deadline_ms, .. }) if failure.reason == Reason::NotMounted => {
                        let left = volumes.shared.left.wait_for(volume, Duration::from_millis(*deadline_ms));
                        return left.unwrap_or(Err(failure)).map(|()| Reply::Done);
                    }
                    (found, _) => found?,
                };
                let is_umount = matches!(request, Request::Umount { .. } | Request::Detach);
                let release = || volumes.release_if_ended(&name, &session);
                let answer = || session.answer(volume, request, &release, progress);
                if is_umount { volumes.shared.events.report_umount(name.as_str(), answer) } else { answer() }
            }
        }
    }
}

impl Respond for Responder {
    fn respond(&self, volume: &VolumeRef, request: Request, progress: &dyn Fn(Reply) -> bool) -> Reply {
        self.answer(volume, request, progress).unwrap_or_else(Reply::Failed)
    }

    fn check_exists(&self, volume: &VolumeRef) -> Result<(), Failure> {
        match self.volumes.find(volume) {
            Err(failure) if failure.reason == Reason::NotMounted && !volume.is_empty() => Err(failure),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

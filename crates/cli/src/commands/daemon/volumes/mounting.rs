//! The steps of a mount, from a request to a volume that programs can use.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use slackwater::UmountOptions;

use super::{Held, Reservation, Shared, Volume, Volumes, ending};
use crate::commands::mount::attach;
use crate::control::protocol::{EventKind, MountRequest};
use crate::exit::Failure;
use crate::registry::Entry;
use crate::source::opened::{Opened, Opening};
use crate::source::ownership;
use crate::spec::{Transport, VolumeSpec};
use crate::volume::front_end::{FrontEnd, Kept};
use crate::volume::keeping::{self, Keeping};
use crate::volume::name::VolumeName;
use crate::volume::session::Session;
use crate::volume::{endpoints, rescued};

impl Volumes {
    /// Mounts a volume, and returns its name.
    ///
    /// # Errors
    /// The cause of the failure; nothing is mounted then.
    ///
    /// # Blocking
    /// For the source, and for the write-back of what an earlier mount left.
    pub(crate) fn mount(&self, request: &MountRequest) -> Result<(VolumeName, Arc<FrontEnd>), Failure> {
        let name = match &request.name {
            Some(name) => VolumeName::new(name)?,
            None => VolumeName::of(&request.mountpoint)?,
        };
        let options = self.options_of(request)?;
        if let Some(mounted) = self.made_before(request) {
            return Ok(mounted);
        }
        let (entry, source_fd) = {
            let others = self.shared.registry.entries_of_others()?;
            let own = self.entries();
            let others = others.iter().filter(|found| found.is_alive).map(|found| &found.entry);
            let mounts: Vec<_> = others.chain(own.iter().map(Arc::as_ref)).collect();
            let endpoints = endpoints::find(
                &request.source,
                &request.mountpoint,
                &request.options,
                request.credentials.as_deref(),
                &mounts,
            )?;
            let identity = endpoints.source.identity(&[]);
            let identity = identity.map_err(|error| Failure::failed(format!("cannot identify the source: {error}")))?;
            // A reader has no data in the arena, and may be beside the writer and other readers.
            let identity = match endpoints.source.is_reader() {
                true => self.name_of_reader(&identity, &own),
                false => identity,
            };
            let Shared { arena, cache_bytes, socket, .. } = &self.shared;
            let entry =
                Entry::of_this_process(endpoints.source, identity, endpoints.mountpoint, arena.clone(), *cache_bytes);
            let keeper = self.shared.keeper.as_ref().map(|keeper| keeper.pid);
            let entry = entry.of_daemon(name.to_string(), socket.clone()).kept_by(keeper);
            (Arc::new(entry), endpoints.source_fd)
        };
        if let Some(attached) = self.attach(request, &entry)? {
            return Ok(attached);
        }
        let reservation = self.reserve(&name, &entry)?;
        let say = |text: &str| tracing::info!("{text}");
        let acquired = ownership::acquire(&self.shared.registry, &entry, source_fd, false, &|_| Ok(false), &say)?;
        let Some(ownership) = acquired else { unreachable!("nothing was attached") };
        let session = Session::new(entry, self.shared.tally.clone());
        session.set_spec(attach::of_volume(options.clone()));
        let mut keeping = self.shared.keeper.as_ref().map(Keeping::new);
        let kept = keeping.as_mut().map(Keeping::front_end).transpose()?;
        let (source, front_end) = match self.open(&name, &session, &options, kept) {
            Ok(opened) => opened,
            Err(failure) => {
                // The entry says to which volume the changes belong.
                if self.shared.left.note_log(&session.entry) {
                    ownership.registered.leave();
                }
                return Err(failure);
            }
        };
        let held = keeping.map_or(Ok(()), |keeping| {
            session.set_kept(keeping.volume());
            keeping.hold(&session.entry, &options, &front_end, &ownership)
        });
        let is_ending = self.serve(reservation, &session, &front_end, Held { source, ownership });
        let mountpoint = request.mountpoint.to_string_lossy().into_owned();
        self.shared.events.send(EventKind::Mounted, Some(name.as_str()), mountpoint);
        // The shutdown has not seen this volume.
        let outcome = if is_ending { held.and(Err(ending())) } else { held };
        if let Err(failure) = outcome {
            self.umount(&name, &session, true)?;
            return Err(failure);
        }
        Ok((name, front_end))
    }

    /// The name in the arena of one more reader of a volume. `own` has those of a predecessor.
    fn name_of_reader(&self, identity: &str, own: &[Arc<Entry>]) -> String {
        loop {
            let name = format!("{identity}-reader-{}", self.shared.readers.fetch_add(1, Ordering::Relaxed));
            if !own.iter().any(|entry| entry.identity == name) {
                return name;
            }
        }
    }

    /// The options of a volume among many.
    fn options_of(&self, request: &MountRequest) -> Result<VolumeSpec, Failure> {
        let MountRequest { source, options, .. } = request;
        if self.shared.keeper.is_none() {
            return Ok(VolumeSpec { transport: options.transport.among_many(), ..options.clone() });
        }
        match keeping::refusal(source, options) {
            Some(why) => Err(Failure::usage(format!("this daemon has --keep, and {why}"))
                .advise("mount it without --daemon, or in a daemon without --keep")),
            None => Ok(VolumeSpec { transport: Transport::Dev, ..options.clone() }),
        }
    }

    /// Lets programs and requests reach a mounted volume until its end. Returns whether the daemon has begun to end since
    /// the reservation.
    pub(super) fn serve(
        &self,
        reservation: Reservation<'_>,
        session: &Arc<Session>,
        front_end: &Arc<FrontEnd>,
        held: Held,
    ) -> bool {
        session.set_mounted(&self.shared.engine, front_end, &held.source);
        let (ends, name, ended) = (self.ends.clone(), reservation.name.clone(), Arc::downgrade(session));
        let is_ending = reservation.fill(Volume { session: Arc::clone(session), held: Some(held) });
        front_end.on_unmounted(move || {
            if let Some(session) = ended.upgrade() {
                // The receiving thread lives as long as the process.
                session.after_unmounting(move || drop(ends.send((name, ended))));
            }
        });
        is_ending
    }

    /// Opens the source and mounts it.
    pub(super) fn open(
        &self,
        name: &VolumeName,
        session: &Session,
        options: &VolumeSpec,
        kept: Option<Kept>,
    ) -> Result<(Opened, Arc<FrontEnd>), Failure> {
        let identity = &session.entry.identity;
        self.shared.left.wait_until_written_back(identity);
        let say = |text: &str| tracing::info!("{text}");
        let check = || if self.state().is_ending { Err(ending()) } else { Ok(()) };
        let keeper = session.entry.keeper;
        let is_inherited = kept.as_ref().is_some_and(|kept| kept.device.is_some());
        let opening = match keeper.filter(|_| is_inherited) {
            Some(keeper) => Opening::Inherited { keeper, check: &check },
            None => Opening::New { keeper, wait: false, say: &say },
        };
        let has_data = self.shared.left.nodes_of(identity).is_some();
        let opened = Opened::new(&session.entry, options, has_data, opening)?;
        let front_end = self.open_front_end(name, session, options, &opened, kept);
        // Data that is left, and an inherited mount that another attempt will serve, keep the claim.
        let is_released = !has_data && !is_inherited;
        let front_end = front_end.inspect_err(|_| {
            if is_released {
                opened.clone().close_unused();
            }
        })?;
        opened.inherited_all();
        self.shared.left.has_mounted(identity);
        Ok((opened, front_end))
    }

    fn open_front_end(
        &self,
        name: &VolumeName,
        session: &Session,
        options: &VolumeSpec,
        opened: &Opened,
        kept: Option<Kept>,
    ) -> Result<Arc<FrontEnd>, Failure> {
        let Shared { namespace, pool, tenancy, left, .. } = &self.shared;
        let Entry { source, mountpoint, identity, .. } = &*session.entry;
        let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("cannot open the source: {error}"));
        let backend = opened.backend(left.nodes_of(identity)).map_err(|error| failed(&error))?;
        let mounted = namespace.mount(name.path(), identity, backend).map_err(|error| failed(&error))?;
        let volume = mounted.super_block();
        drop(mounted);
        let opened = FrontEnd::open(pool, &volume, source.name(), mountpoint, options, tenancy.clone(), kept);
        match opened {
            Ok(front_end) => {
                rescued::print_all(&volume.rescued(), source.name());
                session.show(Some(&volume));
                Ok(front_end)
            }
            Err(failure) => {
                // The volume may have data of an earlier mount: that is written back first.
                match volume.umount(UmountOptions::default()) {
                    Ok(()) => self.forget(name),
                    Err(error) => {
                        tracing::error!(volume = name.as_str(), %error, "the mount failed, and the volume cannot be ended")
                    }
                }
                Err(failure)
            }
        }
    }
}

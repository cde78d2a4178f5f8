//! The steps of a mount, from a request to a volume that programs can use.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use slackwater::UmountOptions;
use slackwater_control::exit::{Failure, Reason};
use slackwater_control::mountpoint::name_of;
use slackwater_control::name::VolumeName;
use slackwater_control::protocol::{EventKind, MountRequest};
use slackwater_control::spec::wire::Stated;
use slackwater_control::spec::{MountSpec, Transport, VolumeSpec};
use slackwater_mount::{Kept, MountPoint, MountedVolume};

use super::{Held, Reservation, Shared, Volume, Volumes, ending};
use crate::registry::Entry;
use crate::source::opened::{Opened, Opening};
use crate::source::ownership;
use crate::volume::keeping::{self, Keeping};
use crate::volume::session::Session;
use crate::volume::{endpoints, mounting, rescued};

impl Volumes {
    /// Mounts a volume, and returns its name.
    ///
    /// # Errors
    /// The cause of the failure; nothing is mounted then.
    ///
    /// # Blocking
    /// For the source, and for the write-back of what an earlier mount left.
    pub(crate) fn mount(&self, request: &MountRequest) -> Result<(VolumeName, Arc<MountedVolume>), Failure> {
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
        let mut keeping = self.shared.keeper.as_ref().map(Keeping::new);
        let (spec, kept) =
            (MountSpec::of_volume(options.clone()), keeping.as_ref().map(|keeping| keeping.volume().clone()));
        let session = Session::new(entry, kept, spec, self.shared.tally.clone());
        // Nodes cannot be kept for many volumes.
        let kept = keeping.as_mut().map(|keeping| keeping.front_end()).transpose()?;
        let (source, mounted) = match self.open(&name, &session, &options, kept) {
            Ok(opened) => opened,
            Err(failure) => {
                // The entry says to which volume the changes belong.
                if self.shared.left.note_log(&session.entry) {
                    ownership.registered.leave();
                }
                return Err(failure);
            }
        };
        let held = keeping.map_or(Ok(()), |keeping| keeping.hold(&session.entry, &options, &mounted, &ownership));
        let is_ending = self.serve(reservation, &session, &mounted, Held { source, ownership });
        let mountpoint = request.mountpoint.to_string_lossy().into_owned();
        self.shared.events.send(EventKind::Mounted, Some(name.as_str()), mountpoint);
        // The shutdown has not seen this volume.
        let outcome = if is_ending { held.and(Err(ending())) } else { held };
        if let Err(failure) = outcome {
            self.umount(&name, &session, true)?;
            return Err(failure);
        }
        Ok((name, mounted))
    }

    /// The volume that an earlier process has mounted for this request, if it has.
    fn made_before(&self, request: &MountRequest) -> Option<(VolumeName, Arc<MountedVolume>)> {
        if !request.is_repeated {
            return None;
        }
        let place = MountPoint::here(name_of(&request.mountpoint).unwrap_or_else(|_| request.mountpoint.clone()));
        let is_meant = |(name, session): &(VolumeName, Arc<Session>)| {
            session.entry.source.name() == request.source
                && request.name.as_ref().is_none_or(|word| word == name.as_str())
        };
        let (name, session) = self.mounted().into_iter().filter(is_meant).find(|(_, it)| it.is_made(&place))?;
        session.mounted().map(|mounted| (name, mounted))
    }

    /// Mounts a volume that this daemon has at a further mount point. `None`, if it does not have it, or has it under
    /// another name.
    ///
    /// # Errors
    /// The volume has other options, or cannot be mounted there.
    fn attach(
        &self,
        request: &MountRequest,
        entry: &Entry,
    ) -> Result<Option<(VolumeName, Arc<MountedVolume>)>, Failure> {
        let has_source = |session: &Session| {
            let source = &session.entry.source;
            source.is_same(&entry.source) && source.conflicts_with(&entry.source)
        };
        let found = self.mounted().into_iter().find(|(_, session)| has_source(session));
        let is_meant = |name: &VolumeName| request.name.as_ref().is_none_or(|word| word == name.as_str());
        let Some((name, session)) = found.filter(|(name, _)| is_meant(name)) else { return Ok(None) };
        let stated = Stated::of_volume(request.options.clone());
        match session.attach(MountPoint::here(entry.mountpoint.clone()), &stated, request.is_repeated, &mut |_, _| {}) {
            Ok(()) => {}
            Err(failure) if failure.reason == Reason::NotMounted => return Ok(None),
            Err(failure) => return Err(failure),
        }
        let mountpoint = entry.mountpoint.to_string_lossy().into_owned();
        self.shared.events.send(EventKind::Mounted, Some(name.as_str()), mountpoint);
        Ok(session.mounted().map(|mounted| (name, mounted)))
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

    /// Lets programs and requests reach a mounted volume until its end. Returns whether the daemon has begun to end
    /// since the reservation.
    pub(in crate::commands::daemon) fn serve(
        &self,
        reservation: Reservation<'_>,
        session: &Arc<Session>,
        mounted: &Arc<MountedVolume>,
        held: Held,
    ) -> bool {
        session.set_mounted(&self.shared.engine, mounted, &held.source);
        let (ends, name, ended) = (self.ends.clone(), reservation.name.clone(), Arc::downgrade(session));
        let is_ending = reservation.fill(Volume { session: Arc::clone(session), held: Some(held) });
        mounted.on_unmounted(move || {
            if let Some(session) = ended.upgrade() {
                // The receiving thread lives as long as the process.
                session.after_unmounting(move || drop(ends.send((name, ended))));
            }
        });
        is_ending
    }

    /// Opens the source and mounts it.
    pub(in crate::commands::daemon) fn open(
        &self,
        name: &VolumeName,
        session: &Session,
        options: &VolumeSpec,
        kept: Option<Kept>,
    ) -> Result<(Opened, Arc<MountedVolume>), Failure> {
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
        let mounted = self.mount_opened(name, session, options, &opened, kept);
        // Data that is left, and an inherited mount that another attempt will serve, keep the claim.
        let is_released = !has_data && !is_inherited;
        let mounted = mounted.inspect_err(|_| {
            if is_released {
                opened.clone().close_unused();
            }
        })?;
        opened.inherited_all();
        self.shared.left.has_mounted(identity);
        Ok((opened, mounted))
    }

    fn mount_opened(
        &self,
        name: &VolumeName,
        session: &Session,
        options: &VolumeSpec,
        opened: &Opened,
        kept: Option<Kept>,
    ) -> Result<Arc<MountedVolume>, Failure> {
        let Shared { engine, pool, tenancy, left, .. } = &self.shared;
        let Entry { source, mountpoint, identity, .. } = &*session.entry;
        let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("cannot open the source: {error}"));
        let backend = opened.backend(left.nodes_of(identity)).map_err(|error| failed(&error))?;
        let volume = engine.mount(identity, backend).map_err(|error| failed(&error))?;
        let mounted = mounting::mount(pool, &volume, source.name(), mountpoint, options, tenancy.clone(), kept);
        match &mounted {
            Ok(_) => rescued::print_all(&volume.rescued(), source.name()),
            Err(_) => {
                // The volume may have data of an earlier mount: that is written back first.
                if let Err(error) = volume.umount(UmountOptions::default()) {
                    tracing::error!(volume = name.as_str(), %error, "the mount failed, and the volume cannot be ended");
                }
            }
        }
        mounted
    }
}

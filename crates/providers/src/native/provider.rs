//! The provider itself: folders, groups and launched boxes behind the contract.

use super::{
    end::end,
    folder::{Folders, Mounted},
    groups::{Groups, group_maker, spare_group},
    launch::Launcher,
    limits::{self, Bounds},
    mounts::HostFolders,
    settings::NativeSettings,
};
use crate::{
    boxes::{Boxes, Held, Intent, io_error, no_box, refuse_damaged, refuse_image_options},
    dial::dial,
    off_thread, short_work, volumes,
    watch::{self, Truth},
};
use async_trait::async_trait;
use jiff::Timestamp;
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{Mode, OFlags},
};
use seawall_api::{
    AccountId, SandboxId,
    sandbox::{EndReason, Limits, SandboxSpec},
};
use seawall_core::{
    Error, Result,
    ports::{
        AccountTotals, AccountUse, BoxEvents, BoxInfo, BoxState, BoxUsage, Capabilities, LimitKinds,
        Provider, ToBox, VolumeInfo, Volumes,
    },
    steps::reached,
};
use seawall_jail::{
    cgroup::{BoxGroup, Controller, Entry},
    order::{CgroupPlace, Disks, Order},
};
use seawall_wire::Duplex;
use std::{
    fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// How old groups may be that nobody took.
const SPARES_PATIENCE: Duration = Duration::from_secs(600);
/// How old the look at the host's `/etc` may be.
const ETC_PATIENCE: Duration = Duration::from_secs(30);
const DEFAULT_PATH: &str = "/run/seawall/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Clone)]
pub struct NativeProvider {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) folders: Arc<Folders>,
    launcher: Launcher,
    /// The guest's program, which is also `sudo` in a box.
    program: PathBuf,
    pub(super) groups: Arc<Groups>,
    pub(super) bounds: Bounds,
    open_files: u64,
    disk_reserve_mb: Option<u64>,
    host_folders: HostFolders,
    /// When the copy of the host's `/etc` was last compared with it.
    etc_seen: Mutex<Option<Instant>>,
    pub(super) warned: AtomicBool,
    /// Boxes that are just being launched.
    launching: AtomicUsize,
}

impl Inner {
    /// With what the folder does not know.
    fn complete(&self, mut info: BoxInfo) -> BoxInfo {
        let died = EndReason::Failed("guest_died".into());
        // The kernel may have ended process 1 too, where nothing else was left to end.
        if info.reason.as_ref() == Some(&died) && self.groups.of_box(info.id).oom_kills() > 0 {
            info.reason = Some(EndReason::Failed("oom".into()));
        }
        if info.state == BoxState::Damaged {
            return info;
        }
        if let Ok(limits) = self.bounds.in_force(&info.spec.limits) {
            info.limits = limits::shown(&limits, info.limits.disk_mb);
        }
        info
    }

    /// Kills the processes of groups whose box's folder was removed. A folder outlives its group, so no call is at work.
    fn end_orphans(&self) {
        // An error does not show that a folder was removed.
        let is_there = |path: &Path| std::fs::exists(path).unwrap_or(true);
        if !self.folders.boxes.path.is_dir() {
            return;
        }
        for (id, group) in self.groups.boxes() {
            if is_there(&self.folders.boxes.of(id)) {
                continue;
            }
            tracing::warn!(sandbox = %id, "ending a box whose folder is gone");
            group.kill();
            if let Err(error) = group.remove() {
                tracing::error!(sandbox = %id, "the group of a box that is gone: {error}");
            }
        }
    }
}

impl fmt::Debug for NativeProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let boxes = &self.inner.folders.boxes.path;
        f.debug_struct("NativeProvider").field("boxes", boxes).finish_non_exhaustive()
    }
}

impl NativeProvider {
    /// The boxes beneath a data folder. Those of another folder are another installation's.
    pub fn open(data: &Path, settings: NativeSettings) -> Result<NativeProvider> {
        std::fs::create_dir_all(data).map_err(|error| io_error(data, error))?;
        let data = data.canonicalize().map_err(|error| io_error(data, error))?;
        let launcher = Launcher::new(&data, crate::guest_binary())?;
        let bounds = Bounds::measure(&data, settings.defaults);
        let groups = &bounds.groups;
        let installation = blake3::hash(data.as_os_str().as_bytes()).to_hex()[..8].to_owned();
        // What a crash left; those that somebody else has ready are made again when they are missing.
        groups.clear(&spare_group(&installation, ""));
        // And of installations that are no more. Whoever misses one makes another.
        groups.clear_old(&spare_group("", ""), SPARES_PATIENCE);
        let spares = group_maker(&bounds, &installation);
        let groups = Arc::new(Groups::new(groups.clone(), installation));
        let in_group = {
            let groups = groups.clone();
            move |id: SandboxId| groups.of_box(id).has_processes()
        };
        let folders = Arc::new(Folders::open(&data, spares, Arc::new(in_group))?);
        let etc_seen = Mutex::new(None);
        let inner = Inner {
            folders,
            launcher,
            program: crate::guest_file(&data, crate::guest_binary())?,
            groups,
            bounds,
            open_files: settings.defaults.open_files,
            disk_reserve_mb: settings.disk_reserve_mb,
            host_folders: HostFolders::new(&data, settings.mounts)?,
            etc_seen,
            warned: AtomicBool::new(false),
            launching: AtomicUsize::new(0),
        };
        Ok(NativeProvider { inner: Arc::new(inner) })
    }

    async fn hold(&self, id: SandboxId) -> Result<Option<Held>> {
        self.inner.folders.boxes.hold(id).await
    }

    fn to_box(&self, id: SandboxId) -> ToBox {
        ToBox { provider: Arc::new(self.clone()), id }
    }

    fn check_spec(&self, spec: &SandboxSpec) -> Result<()> {
        if let Some(image) = spec.image.as_deref().filter(|image| *image != "host") {
            return Err(Error::invalid(format!(
                "the provider `native` has the image `host` only, so it cannot use `{image}`; leave it out"
            )));
        }
        refuse_image_options("native", spec)?;
        self.inner.host_folders.resolve(&spec.mounts)?;
        self.inner.bounds.check(&spec.limits)
    }

    /// Whether nobody else waits for this provider in this process.
    fn is_alone(&self) -> bool {
        self.inner.launching.load(Ordering::Relaxed) == 0
    }

    /// Not for every box: certificates change seldom.
    fn refresh_etc(&self) -> Result<()> {
        let mut last = self.inner.etc_seen.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() > ETC_PATIENCE) {
            self.inner.folders.refresh_etc()?;
            *last = Some(Instant::now());
        }
        Ok(())
    }

    async fn launch(&self, info: &BoxInfo, account: AccountId) -> Result<()> {
        let (inner, id) = (&self.inner, info.id);
        let folders = &inner.folders;
        folders.write_end(id, None)?;
        self.refresh_etc()?;
        let group = self.make_group(info, account).await?;
        let disks = self.mount_disks(info, account).await?;
        let (order, fds) = self.order(info, &group, disks)?;
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        reached("the box is about to be launched");
        inner.launcher.launch(&order, &borrowed).await
    }

    /// What the launcher is asked for, and the descriptors that go with it, in the order that [`Order`] names.
    fn order(
        &self,
        info: &BoxInfo,
        group: &BoxGroup,
        Mounted { disks, own, volume }: Mounted,
    ) -> Result<(Order, Vec<OwnedFd>)> {
        let (inner, id) = (&self.inner, info.id);
        let folders = &inner.folders;
        let folder = open_dir(&folders.boxes.of(id))?;
        let own = match (own, disks) {
            (Some(disk), _) => disk.into_mount(),
            // It is on the volume's disk.
            (None, Disks::One) => folder.try_clone().map_err(|e| io_error(Path::new("a folder"), e))?,
            (None, _) => open_dir(&folders.own(id))?,
        };
        let volume = match volume {
            Some(disk) => disk.into_mount(),
            None => open_dir(&folders.work(id, &info.spec))?,
        };
        let mut fds = vec![folder, own, volume, open(&inner.program, OFlags::PATH)?];
        let cgroup = match group.entry().map_err(|e| io_error(Path::new("the control group"), e))? {
            None => CgroupPlace::None,
            Some(Entry::V2(fd)) => {
                fds.push(fd);
                CgroupPlace::V2
            }
            Some(Entry::V1(tasks)) => {
                let count = tasks.len();
                fds.extend(tasks);
                CgroupPlace::V1(count)
            }
        };
        let found = group.counters();
        let counters = found.each_ref().map(Option::is_some);
        fds.extend(found.into_iter().flatten());
        let mut mounts = Vec::new();
        for (folder, source) in inner.host_folders.resolve(&info.spec.mounts)? {
            fds.push(source);
            mounts.push(folder);
        }
        let order = Order {
            sandbox: id.to_string(),
            env: environment(id, &info.spec),
            user: info.spec.user.clone(),
            cgroup,
            counters,
            mounts,
            open_files: Some(inner.open_files),
            disks,
        };
        Ok((order, fds))
    }
}

fn environment(id: SandboxId, spec: &SandboxSpec) -> Vec<(String, String)> {
    let ours = [
        ("PATH", DEFAULT_PATH.to_owned()),
        ("SEAWALL_SANDBOX", id.to_string()),
        ("SEAWALL_WORK", "/work".into()),
    ];
    let ours = ours.into_iter().map(|(key, value)| (key.to_owned(), value));
    ours.chain(spec.env.iter().map(|(key, value)| (key.clone(), value.clone()))).collect()
}

fn open_dir(path: &Path) -> Result<OwnedFd> {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY)
}

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let opened = rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty());
    opened.map_err(|errno| io_error(path, errno.into()))
}

impl Truth for Inner {
    fn boxes(&self) -> &Boxes {
        &self.folders.boxes
    }

    fn info(&self, id: SandboxId) -> Result<BoxInfo> {
        Ok(self.complete(self.folders.info(id)?))
    }
}

#[async_trait]
impl Provider for NativeProvider {
    fn name(&self) -> &'static str {
        "native"
    }

    fn capabilities(&self) -> Capabilities {
        let can = |controller| self.inner.bounds.groups.has(controller);
        Capabilities {
            isolation: true,
            durable: true,
            programs: true,
            terminals: true,
            tunnels: true,
            file_watch: true,
            file_meta: true,
            images: false,
            users: rustix::process::geteuid().is_root(),
            pause: false,
            snapshot: false,
            fork: false,
            gpu: false,
            transparent_egress: false,
            limits: LimitKinds {
                cpus: can(Controller::Cpu),
                memory: can(Controller::Memory),
                disk: self.inner.bounds.can_limit_disk(),
                processes: can(Controller::Pids),
                disk_io: can(Controller::Io),
            },
        }
    }

    fn default_limits(&self) -> Limits {
        let (asked, bounds) = (Limits::default(), &self.inner.bounds);
        bounds
            .in_force(&asked)
            .map(|limits| limits::shown(&limits, bounds.disk_mb(&asked)))
            .unwrap_or_default()
    }

    fn keeps_intent(&self) -> bool {
        true
    }

    async fn check(&self) -> Result<()> {
        self.inner.launcher.check().await?;
        self.inner.folders.check_reserve(self.inner.disk_reserve_mb)
    }

    async fn probe(&self) -> Result<()> {
        self.try_box().await
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec, account: AccountId) -> Result<BoxInfo> {
        self.check_spec(spec)?;
        self.warn_of_missing_limits();
        let (inner, spec) = (self.inner.clone(), spec.clone());
        if !inner.folders.boxes.of(id).exists() {
            inner.folders.check_reserve(inner.disk_reserve_mb)?;
        }
        let held = inner.folders.boxes.hold_new(id).await?;
        short_work(self.is_alone(), move || {
            let (folders, _held) = (&inner.folders, held);
            let intent = match folders.boxes.intent_to_make(id)? {
                Some(intent) if intent.spec != spec => {
                    return Err(Error::conflict(format!("a box for {id} exists with another spec")));
                }
                Some(intent) => intent,
                None => {
                    let intent = Intent { version: 1, id, spec, created_at: Timestamp::now(), account };
                    folders.boxes.write_intent(&intent)?;
                    intent
                }
            };
            folders.make_own(id, &intent.spec, inner.bounds.disk_mb(&intent.spec.limits))?;
            Ok(inner.complete(inner.folders.info_of(intent)))
        })
        .await
    }

    async fn set_account_totals(&self, account: AccountId, totals: &AccountTotals) -> Result<()> {
        if account == AccountId::LOCAL {
            return Ok(());
        }
        let (inner, totals) = (self.inner.clone(), *totals);
        short_work(self.is_alone(), move || inner.set_totals(account, &totals)).await
    }

    async fn start(&self, id: SandboxId) -> Result<BoxInfo> {
        let folders = &self.inner.folders;
        let _held = self.hold(id).await?.ok_or_else(|| no_box(id))?;
        let (account, info) = match folders.boxes.intent(id) {
            Ok(Some(intent)) => (intent.account, self.inner.complete(folders.info_of(intent))),
            _ => (AccountId::LOCAL, self.inner.info(id)?),
        };
        if info.state == BoxState::Running {
            return Ok(info);
        }
        refuse_damaged(&info)?;
        folders.check_reserve(self.inner.disk_reserve_mb)?;
        // A crash may have come between the intent and these.
        folders.make_own(id, &info.spec, self.inner.bounds.disk_mb(&info.spec.limits))?;
        let group = self.inner.groups.of(id, account);
        if group.exists() {
            // Of a former life whose folder was lost, perhaps.
            group.kill();
        }
        self.inner.launching.fetch_add(1, Ordering::Relaxed);
        let launched = self.launch(&info, account).await;
        self.inner.launching.fetch_sub(1, Ordering::Relaxed);
        launched?;
        folders.spares.refill();
        // Only its process is new.
        let pid = folders.process(id).map(|process| process.pid);
        Ok(BoxInfo { state: BoxState::Running, reason: None, pid, ..info })
    }

    async fn usage(&self, id: SandboxId) -> Result<BoxUsage> {
        let (memory_bytes, cpu_seconds) = self.inner.groups.of_box(id).used();
        Ok(BoxUsage { memory_bytes, cpu_seconds })
    }

    async fn account_use(&self, account: AccountId) -> Result<AccountUse> {
        Ok(self.inner.groups.used_by(account))
    }

    async fn stop(&self, id: SandboxId, grace: Duration) -> Result<()> {
        let _held = self.hold(id).await?.ok_or_else(|| no_box(id))?;
        let info = self.inner.folders.info(id)?;
        let pinned = self.inner.pin_disks(id, Some(&info.spec));
        let ended = end(&self.inner.folders, self.to_box(id), grace, EndReason::Stopped).await;
        self.inner.folders.spares.release(pinned);
        ended
    }

    async fn remove(&self, id: SandboxId, volumes: Volumes) -> Result<()> {
        let held = self.hold(id).await?;
        // One that cannot be read tells nothing, and goes all the same.
        let intent = self.inner.folders.boxes.intent(id).ok().flatten();
        if held.is_some() {
            let pinned = self.inner.pin_disks(id, intent.as_ref().map(|intent| &intent.spec));
            let ended =
                end(&self.inner.folders, self.to_box(id), Duration::ZERO, EndReason::Terminated).await;
            self.inner.folders.spares.release(pinned);
            ended?;
        }
        let inner = self.inner.clone();
        short_work(self.is_alone(), move || {
            reached("the box is ended");
            let removed = inner.groups.remove(id, intent.map(|intent| intent.account), held.is_some());
            removed.map_err(|e| io_error(Path::new("the control group"), e))?;
            reached("the group is removed");
            inner.folders.remove(id, volumes == Volumes::Delete)?;
            drop(held);
            Ok(())
        })
        .await
    }

    async fn get(&self, id: SandboxId) -> Result<BoxInfo> {
        self.inner.info(id)
    }

    async fn list(&self) -> Result<Vec<BoxInfo>> {
        let inner = self.inner.clone();
        off_thread(move || {
            inner.end_orphans();
            Ok(watch::present(&*inner)?.into_values().collect())
        })
        .await
    }

    async fn ids(&self) -> Result<Vec<SandboxId>> {
        let inner = self.inner.clone();
        off_thread(move || {
            inner.end_orphans();
            watch::ids(&*inner)
        })
        .await
    }

    async fn watch(&self) -> Result<BoxEvents> {
        watch::watch(self.inner.clone())
    }

    async fn has_volume(&self, name: &str) -> Result<bool> {
        Ok(self.inner.folders.volumes.join(name).exists())
    }

    async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        let folders = self.inner.folders.clone();
        off_thread(move || volumes::list(&folders.volumes, &folders.boxes)).await
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        let (folders, name) = (self.inner.folders.clone(), name.to_owned());
        off_thread(move || volumes::remove(&folders.volumes, &folders.boxes, &name)).await
    }

    async fn connect(&self, id: SandboxId) -> Result<Box<dyn Duplex>> {
        dial(&*self.inner, id).await
    }
}

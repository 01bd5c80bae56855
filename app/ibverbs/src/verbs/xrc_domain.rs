//! Implements XRC domains as C sees them.
//!
//! A domain belongs to a file: a program that opens it with a descriptor of the same file has the
//! same one (`ibv_open_xrcd(3)`). Within a process that is so. Processes have parts of it: what a
//! queue pair receives for the SRQ of another process goes on to that (`Client::join_domain`). So
//! that a number means one SRQ only, and names its process, each process has a range of them, which
//! it holds by a socket of that name: names of sockets belong to the network namespace, as the
//! device does, and go with the process.

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use omniverb_abi::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_qp, ibv_xrcd,
    ibv_xrcd_init_attr,
};
use omniverb_client::{
    Client, DomainPart, Membership, OpenedQp, SharedQueuePairs, generation, lock,
};
use omniverb_device::{DOMAIN_PARTS, Domain, Qp};
use omniverb_terms::{Errno, Qpn};
use rustix::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::context::ContextShell;
use super::object_counts::UserCount;
use super::qp_handle::SharedRoute;
use crate::errno::null;
use crate::refusal_log::refused;

/// Device and inode of a file.
type File = (u64, u64);

/// The domains of files that are open in this process, each with the process that opened it: a
/// forked child's copies are its parent's.
static OPEN: Mutex<Vec<(File, u64, Weak<XrcDomain>)>> = Mutex::new(Vec::new());

/// A domain, and the processes that have its queue pairs open.
pub(super) struct XrcDomain {
    pub(super) domain: Arc<Domain>,
    me: Weak<XrcDomain>,
    /// What C has of each queue pair that receives in it.
    handles: Mutex<HashMap<Qpn, QpHandles>>,
    /// Lets other processes hand requests over. It goes before the claim does.
    membership: Mutex<Option<Arc<Membership>>>,
    /// Keeps other processes away from its range of numbers.
    claim: Option<PartClaim>,
}

/// What C has of a queue pair.
struct QpHandles {
    /// Its objects: one at least, or other processes have it open.
    objects: Vec<usize>,
    /// How often other processes have it open.
    elsewhere: u32,
    /// If only they have.
    kept: Option<Arc<XrcDomain>>,
    /// The address vector, which is the same by each.
    route: SharedRoute,
}

/// A part of the domain of a file, which is ours as long as this lives.
struct PartClaim {
    file: File,
    part: u32,
    /// See [`generation`].
    process: u64,
    socket: Option<OwnedFd>,
}

impl Drop for PartClaim {
    fn drop(&mut self) {
        if self.process != generation()
            && let Some(socket) = self.socket.take()
        {
            // A forked child: the number may be in use for something else by now.
            let _ = socket.into_raw_fd();
        }
    }
}

impl XrcDomain {
    fn new(domain: Arc<Domain>, claim: Option<PartClaim>) -> Arc<XrcDomain> {
        let (handles, membership) = (Mutex::default(), Mutex::default());
        Arc::new_cyclic(|me| XrcDomain { domain, me: me.clone(), handles, membership, claim })
    }

    /// Other processes may find this one, and it them. If not, the next open of the file tries that
    /// again.
    fn join(&self, client: &Arc<Client>, file: BorrowedFd<'_>) {
        let join = || {
            // Of a path nothing can be stated.
            if rustix::fs::fcntl_getfl(file).ok()?.contains(OFlags::PATH) {
                return None;
            }
            let claim = self.claim.as_ref()?;
            let (prefix, number) = (prefix(claim.file), claim.part);
            let socket = claim.socket.as_ref()?.try_clone().ok()?;
            let file = file.try_clone_to_owned().ok()?;
            let receivers: Weak<dyn SharedQueuePairs> = self.me.clone();
            let part = DomainPart { prefix, number, socket, file, receivers };
            client.join_domain(&self.domain, part).ok().map(Arc::new)
        };
        let mut membership = lock(&self.membership);
        if membership.is_none() && self.claim.is_some() {
            *membership = join();
            if membership.is_none() {
                refused!(Errno::EMFILE, "ibv_open_xrcd: other processes cannot find this one");
            }
        }
    }

    pub(super) fn membership(&self) -> Option<Arc<Membership>> {
        lock(&self.membership).clone()
    }

    /// A queue pair was made to receive here; C's first object for it.
    pub(super) fn add(&self, qp: &Qp, first: usize, route: SharedRoute) {
        let handles = QpHandles { objects: vec![first], elsewhere: 0, kept: None, route };
        lock(&self.handles).insert(qp.number, handles);
        qp.cookie.store(first, Ordering::Release);
    }

    /// Makes one more object for the queue pair of this number that receives here, if C has one.
    pub(super) fn open(
        &self,
        number: Qpn,
        make: impl FnOnce(Arc<Qp>, SharedRoute) -> *mut ibv_qp,
    ) -> Option<*mut ibv_qp> {
        // Under the lock to the end: the thread that destroys the last one destroys the queue pair.
        let mut handles = lock(&self.handles);
        let known = handles.get_mut(&number)?;
        let qp = self.domain.qp(number)?;
        let made = make(qp.clone(), known.route.clone());
        known.objects.push(made as usize);
        // It may have been other processes' only.
        if known.kept.take().is_some() {
            qp.cookie.store(made as usize, Ordering::Release);
        }
        Some(made)
    }

    /// Opens one that another process has made.
    pub(super) fn open_elsewhere(&self, number: Qpn) -> Result<OpenedQp, Errno> {
        let claim = self.claim.as_ref().ok_or(Errno::EINVAL)?;
        // A name that is no part's can never answer.
        let is_other = |part: &u32| *part < DOMAIN_PARTS && *part != claim.part;
        let parts: Vec<_> = parts_of(claim.file).into_iter().flatten().filter(is_other).collect();
        if parts.is_empty() {
            return Err(Errno::EINVAL);
        }
        self.membership().ok_or(Errno::EMFILE)?.open_qp(number, parts)
    }

    /// The queue pair of this number, and its address vector.
    pub(super) fn receiver(&self, number: Qpn) -> Option<(Arc<Qp>, SharedRoute)> {
        let route = lock(&self.handles).get(&number)?.route.clone();
        Some((self.domain.qp(number)?, route))
    }

    /// Another process has a queue pair open; false: there is none of this number.
    pub(super) fn begin_hold(&self, number: Qpn) -> bool {
        let mut handles = lock(&self.handles);
        let Some(known) = handles.get_mut(&number) else { return false };
        known.elsewhere += 1;
        true
    }

    /// It has no longer. Gives the queue pair if no object has.
    pub(super) fn end_hold(&self, number: Qpn) -> Option<Arc<Qp>> {
        let mut handles = lock(&self.handles);
        let known = handles.get_mut(&number)?;
        known.elsewhere = known.elsewhere.saturating_sub(1);
        if known.elsewhere > 0 || !known.objects.is_empty() {
            return None;
        }
        // The caller has the area.
        handles.remove(&number);
        self.domain.qp(number)
    }

    /// C has one object less; its events go to another one of the queue pair's, if there is one.
    /// Says whether the queue pair is still open, here or elsewhere.
    pub(super) fn remove(&self, qp: &Qp, object: usize) -> bool {
        let mut handles = lock(&self.handles);
        let Some(known) = handles.get_mut(&qp.number) else { return false };
        known.objects.retain(|other| *other != object);
        let heir = known.objects.first().copied();
        let stays = heir.is_some() || known.elsewhere > 0;
        if heir.is_none() && known.elsewhere > 0 {
            known.kept = self.me.upgrade();
        }
        if !stays {
            handles.remove(&qp.number);
        }
        let to = heir.unwrap_or(0);
        let _ = qp.cookie.compare_exchange(object, to, Ordering::AcqRel, Ordering::Acquire);
        stays
    }
}

/// An XRC domain that was opened.
#[repr(C)]
pub(super) struct XrcdShell {
    xrcd: ibv_xrcd,
    pub(super) area: Arc<XrcDomain>,
    /// SRQs and queue pairs that were made with it.
    pub(super) users: UserCount,
}

impl XrcdShell {
    /// # Safety
    /// `xrcd` is null or live.
    pub(super) unsafe fn of<'a>(xrcd: *mut ibv_xrcd) -> Option<&'a XrcdShell> {
        // SAFETY: the caller's promise.
        unsafe { xrcd.cast::<XrcdShell>().as_ref() }
    }
}

/// `ibv_open_xrcd`.
pub(super) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: the inline's arguments.
    let asked = unsafe { *attr };
    if asked.comp_mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS {
        return null(Errno::EINVAL);
    }
    match area(asked.fd, asked.oflags) {
        Ok(area) => {
            if asked.fd >= 0 {
                // SAFETY: the context is open; the program names a descriptor of its own.
                let (shell, file) =
                    unsafe { (ContextShell::of(context), BorrowedFd::borrow_raw(asked.fd)) };
                area.join(&shell.client, file);
            }
            let xrcd = ibv_xrcd { context };
            Box::into_raw(Box::new(XrcdShell { xrcd, area, users: UserCount::default() })).cast()
        }
        Err(errno) => null(errno),
    }
}

/// `ibv_close_xrcd`; `EBUSY` while there are SRQs or queue pairs that were made with it.
pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the inline's argument is live, and not used any more.
    unsafe {
        if XrcdShell::of(xrcd).is_none_or(|shell| shell.users.are_some()) {
            return Errno::EBUSY.raw();
        }
        drop(Box::from_raw(xrcd.cast::<XrcdShell>()));
    }
    0
}

/// The domain of a file, or a private one for -1. Flags count as in the manual page and as a kernel
/// has it: without `O_CREAT` there must be one, with `O_EXCL` none.
fn area(fd: c_int, flags: c_int) -> Result<Arc<XrcDomain>, Errno> {
    if fd == -1 {
        return Ok(XrcDomain::new(Domain::new(), None));
    }
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: the program names a descriptor of its own, used for this call only.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let stat = rustix::fs::fstat(borrowed).map_err(|_| Errno::EBADF)?;
    let file = (stat.st_dev, stat.st_ino);
    let mut open = lock(&OPEN);
    let process = generation();
    open.retain(|(_, opener, area)| *opener == process && area.strong_count() > 0);
    let known = open.iter().find(|(of, ..)| *of == file).and_then(|(.., area)| area.upgrade());
    match known {
        Some(_) if flags & libc::O_EXCL != 0 => Err(Errno::EINVAL),
        Some(area) => Ok(area),
        None => {
            let elsewhere = is_claimed(file, None);
            if flags & libc::O_CREAT == 0 && !elsewhere {
                return Err(Errno::EAGAIN);
            }
            if flags & libc::O_EXCL != 0 && elsewhere {
                return Err(Errno::EINVAL);
            }
            let claim = claim(file)?;
            // Another process came at the same moment: the one with the first part was there first.
            if flags & libc::O_EXCL != 0 && claim.part != 0 {
                return Err(Errno::EINVAL);
            }
            let area = XrcDomain::new(Domain::part(claim.part), Some(claim));
            open.push((file, process, Arc::downgrade(&area)));
            Ok(area)
        }
    }
}

/// What the names of the sockets begin with that stand for parts of a file's domain.
fn prefix((device, inode): File) -> String {
    format!("omniverb/xrcd/{device:x}/{inode:x}/")
}

/// What the kernel lists of sockets with names in this network namespace.
fn socket_names() -> rustix::io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open("/proc/thread-self/net/unix", flags, Mode::empty())?;
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut part))? {
            0 => return Ok(all),
            count => all.extend_from_slice(&part[..count]),
        }
    }
}

/// The parts of a file's domain that processes of this network namespace have; `None`: what looks
/// like one.
fn parts_of(file: File) -> Vec<Option<u32>> {
    let wanted = format!("@{}", prefix(file));
    let listed = socket_names().unwrap_or_default();
    let listed = String::from_utf8_lossy(&listed);
    let parts = listed.lines().filter_map(|line| line.rsplit(' ').next()?.strip_prefix(&wanted));
    parts.map(|part| part.parse::<u32>().ok()).collect()
}

/// Whether a process of this network namespace has a part of a file's domain, other than `ours`.
fn is_claimed(file: File, ours: Option<u32>) -> bool {
    parts_of(file).into_iter().any(|part| part.is_none() || part != ours)
}

/// The first part of a file's domain that is free, and what keeps it ours until we close it or end.
fn claim(file: File) -> Result<PartClaim, Errno> {
    let failed = |_| Errno::EMFILE;
    let (family, kind) = (AddressFamily::UNIX, SocketType::DGRAM);
    let socket =
        rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).map_err(failed)?;
    for part in 0..DOMAIN_PARTS {
        let name = format!("{}{part}", prefix(file));
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
        match rustix::net::bind(&socket, &address) {
            Ok(()) => {
                let (process, socket) = (generation(), Some(socket));
                return Ok(PartClaim { file, part, process, socket });
            }
            Err(rustix::io::Errno::ADDRINUSE) => {}
            Err(_) => break,
        }
    }
    Err(refused!(Errno::ENOMEM, "ibv_open_xrcd: no numbers are left in the domain of this file"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsRawFd;
    use rustix::fs::MemfdFlags;

    #[test]
    fn the_same_file_is_the_same_domain() {
        let file = rustix::fs::memfd_create("domain", MemfdFlags::CLOEXEC).unwrap();
        let other = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        let (create, exclusive) = (libc::O_CREAT, libc::O_CREAT | libc::O_EXCL);
        assert_eq!(area(file.as_raw_fd(), 0).err(), Some(Errno::EAGAIN));
        let first = area(file.as_raw_fd(), exclusive).unwrap();
        for flags in [0, create] {
            assert!(Arc::ptr_eq(&first, &area(file.as_raw_fd(), flags).unwrap()));
        }
        assert_eq!(area(file.as_raw_fd(), exclusive).err(), Some(Errno::EINVAL));
        assert!(!Arc::ptr_eq(&first, &area(other.as_raw_fd(), create).unwrap()));
        drop(first);
        assert_eq!(area(file.as_raw_fd(), 0).err(), Some(Errno::EAGAIN), "it is over");
        area(file.as_raw_fd(), exclusive).unwrap();
    }

    #[test]
    fn without_a_file_it_is_private() {
        assert!(!Arc::ptr_eq(&area(-1, 0).unwrap(), &area(-1, libc::O_CREAT).unwrap()));
        assert_eq!(area(-2, 0).err(), Some(Errno::EBADF));
        assert_eq!(area(i32::MAX, libc::O_CREAT).err(), Some(Errno::EBADF));
    }

    /// Numbers of SRQs are another process's while that has a part.
    #[test]
    fn each_process_has_a_part_of_its_own() {
        let file = rustix::fs::memfd_create("taken", MemfdFlags::CLOEXEC).unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        let identity = (stat.st_dev, stat.st_ino);
        let theirs = claim(identity).unwrap();
        let exclusive = libc::O_CREAT | libc::O_EXCL;
        assert_eq!(area(file.as_raw_fd(), exclusive).err(), Some(Errno::EINVAL));
        let ours = area(file.as_raw_fd(), 0).unwrap();
        assert_eq!((theirs.part, claim(identity).unwrap().part), (0, 2));
        assert!(is_claimed(identity, Some(1)));
        // Nothing can be stated: it has not joined.
        assert_eq!(ours.open_elsewhere(Qpn(7)).err(), Some(Errno::EMFILE));
        drop(theirs);
        assert!(!is_claimed(identity, Some(1)) && is_claimed(identity, None));
        assert_eq!(ours.open_elsewhere(Qpn(7)).err(), Some(Errno::EINVAL));
        drop(ours);
        assert!(!is_claimed(identity, None));
    }
}

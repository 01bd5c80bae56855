//! Supervises one virtual machine: attaches its window, and starts its proxy.
//!
//! It starts the machine's proxy, and another one, with another machine socket, when the daemon has
//! been started afresh.
//!
//! In: a name, a size, where QEMU listens. Out: a proxy for as long as there are QEMU and a
//! daemon; a thread of it plugs in windows that are wanted later (`window_hotplug.rs`). It reads
//! nothing that a guest says: of the port it only sees whether QEMU is there.

mod wait_any;
mod window_holder;

use super::create_guest_memory_file::Memory;
use super::machine_folder::{MachineFolder, User};
use super::machine_window::Window;
use super::pair_window_mode::WindowMethod;
use super::pair_windows::{Pair, Pairs, ledger};
use super::proxy::ProxyEnd;
use super::proxy_restart_delay::{End, Pause};
use super::start_supervisor::{KEEP, MachineRequest, WORDS, own_program};
use super::window_hotplug::{self, Later};
use super::window_mapper_process::{Mapped, Starter};
use super::window_slots::Slots;
use crate::operator_connection::{Home, Operator};
use crate::vnic;
use anyhow::{Context, bail};
use omniverb_session::vm::MachineName;
use omniverb_sys::{clock, fd_inheritance, pidfd, seqpacket};
use rustix::event::PollFlags;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde_json::{Value, json};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use wait_any::wait;
use window_holder::Holder;
pub(super) use window_holder::hold;

/// A proxy's command line.
const CARRY: [&str; 2] = ["vm", "carry"];
/// How long to wait for a daemon, or for QEMU to listen, before looking again.
const LOOK: Duration = Duration::from_millis(250);
/// How long, in nanoseconds, the name may be another machine's: longer than the daemon takes to see
/// that a machine socket is closed.
const TAKEN: u64 = 10_000_000_000;

/// Bytes of the ledger of the machine's own window beside one for each page: which boot of the
/// guest was the last, and which machine this is.
const BOOT_BYTES: u64 = 32;

/// The main function of a supervisor; first it drops all that it has of its starter's.
pub(super) fn keep(
    name: MachineName,
    wanted: MachineRequest,
    user: Option<User>,
    alone: bool,
) -> anyhow::Result<ExitCode> {
    if !alone {
        fd_inheritance::nothing_but_standard().context("cannot close inherited descriptors")?;
        let mut supervisor = Command::new(own_program()?);
        supervisor.args(KEEP).arg(name.text()).args(wanted.words()).arg("--alone");
        if let Some(user) = user {
            supervisor.args(["--user", &user.to_string()]);
        }
        supervisor.spawn().context("cannot start the supervisor")?;
        return Ok(ExitCode::SUCCESS);
    }
    let starter = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .context("not started by `omniverb vm`: standard input is no socket")?;
    rustix::process::setsid().context("cannot leave the starter's session")?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    drop(null);
    let begun = Supervisor::begin(name, wanted, user);
    let answer = match &begun {
        Ok((supervisor, _)) => supervisor.answer(),
        Err(error) => json!({"failed": format!("{error:#}")}),
    };
    let files: Vec<BorrowedFd<'_>> =
        begun.iter().map(|(supervisor, _)| supervisor.window.file.as_fd()).collect();
    seqpacket::send(starter.as_fd(), answer.to_string().as_bytes(), &files)?;
    drop(files);
    let Ok((mut supervisor, machine_socket)) = begun else { return Ok(ExitCode::FAILURE) };
    supervisor.pairs.hand_over(|pair| seqpacket::send(starter.as_fd(), b"+", &[pair.as_fd()]))?;
    if let Some(memory) = &supervisor.memory {
        seqpacket::send(starter.as_fd(), b"+", &[memory.file.as_fd()])?;
    }
    // QEMU takes the starter's place, if it is to inherit the window.
    let machine = match user {
        Some(_) => None,
        None => Some(pidfd::of(seqpacket::peer(starter.as_fd())?.pid)?),
    };
    drop(starter);
    std::env::set_current_dir("/").context("cannot leave the starter's folder")?;
    supervisor.serve(machine_socket, machine.as_ref())?;
    Ok(ExitCode::SUCCESS)
}

struct Supervisor {
    name: MachineName,
    window: Arc<Window>,
    /// The daemon's ledger of it.
    ledger: OwnedFd,
    /// The machine's own memory, if the daemon is to have it.
    memory: Option<Memory>,
    /// The windows that the machine shares with neighbours.
    pairs: Arc<Pairs>,
    /// The hotplug thread, if there is one, is told whenever the machine is attached.
    later: Option<Sender<()>>,
    /// QEMU is to have a monitor for that.
    has_monitor: bool,
    /// The mapper, if windows come by one.
    mapped: Option<Arc<Mapped>>,
    place: MachineFolder,
    /// The process that holds the window for QEMU to open, if QEMU does not inherit it.
    holder: Option<Holder>,
    /// The daemon, or whichever follows it.
    home: Home,
    /// Where this program is. Another version of it may be there in a while, which goes with
    /// another version of the daemon; the file that we are is gone then.
    program: PathBuf,
}

impl Supervisor {
    /// Attaches the machine; with its machine socket.
    fn begin(
        name: MachineName,
        wanted: MachineRequest,
        user: Option<User>,
    ) -> anyhow::Result<(Supervisor, OwnedFd)> {
        let program = own_program()?;
        let window = Window::new(name, wanted.bytes)?;
        let ledger = ledger(&window, BOOT_BYTES)?;
        // Mapped windows come when QEMU is there.
        let numbers = 1..=wanted.plugged();
        let pairs = numbers.map(|number| Pair::make(&window, number, wanted.pairs.bytes));
        let pairs = Pairs::new(pairs.collect::<anyhow::Result<Vec<Pair>>>()?);
        let memory = wanted.memory.map(Memory::new).transpose()?;
        let operator = Operator::connect()?;
        let home = operator.home().clone();
        let all = (&window, &ledger, &pairs, memory.as_ref());
        let Some(machine_socket) = attach(&operator, name, all)? else {
            bail!("a machine of the name {:?} is attached; see `omniverb vm list`", name.text());
        };
        // From here on the name is ours.
        let place = MachineFolder::make(&home.machines(), name, user)?;
        let (window, pairs) = (Arc::new(window), Arc::new(pairs));
        let mut supervisor = Supervisor {
            name,
            window,
            ledger,
            memory,
            pairs,
            later: None,
            has_monitor: false,
            mapped: None,
            place,
            holder: None,
            home,
            program,
        };
        if wanted.may_grow() {
            supervisor.plug_later(wanted, user)?;
        }
        if let Some(user) = user {
            supervisor.hold(user)?;
        }
        Ok((supervisor, machine_socket))
    }

    /// Has a thread plug in windows as they are wanted.
    fn plug_later(&mut self, wanted: MachineRequest, user: Option<User>) -> anyhow::Result<()> {
        let (attached, hears) = channel();
        if wanted.way != WindowMethod::Plugged {
            let slots = Slots { bytes: wanted.pairs.bytes, count: wanted.pairs.most };
            let starter = Starter {
                listener: self.place.listen(user)?,
                own: self.window.clone(),
                pairs: self.pairs.clone(),
                program: self.program.clone(),
            };
            self.mapped = Some(Mapped::start(slots, starter)?);
        }
        let monitor = wanted.has_monitor().then(|| self.place.monitor()).transpose()?;
        self.has_monitor = monitor.is_some();
        let later = Later {
            machine: vnic::name_bytes(self.name.text())?,
            own: self.window.clone(),
            wanted: wanted.pairs,
            pairs: self.pairs.clone(),
            monitor,
            mapped: self.mapped.clone(),
            home: self.home.clone(),
            program: self.program.clone(),
            tries: window_hotplug::TRIES,
            tries_of_others: window_hotplug::TRIES,
            trouble: None,
        };
        window_hotplug::start(later, hears)?;
        // It is attached now.
        let _ = attached.send(());
        self.later = Some(attached);
        Ok(())
    }

    /// Has a process of QEMU's user hold the windows for it, and shows where they are.
    fn hold(&mut self, user: User) -> anyhow::Result<()> {
        let (holder, paths) = Holder::start(&self.window.file, &self.pairs, user)?;
        self.place.show(&paths)?;
        self.holder = Some(holder);
        Ok(())
    }

    fn answer(&self) -> Value {
        let holder = self.holder.as_ref();
        let pairs = 1..=holder.map_or(0, |_| self.pairs.len());
        json!({
            "window": holder.map(|_| self.place.window()),
            "pairs": pairs.map(|number| self.place.pair(number)).collect::<Vec<_>>(),
            "port": self.place.port(),
            "monitor": self.has_monitor.then(|| self.place.monitor_path()),
            "mapped": self.mapped.is_some().then(|| self.place.mapped_path()),
        })
    }

    /// Until the machine is gone, or an operator has parted with it. `machine`: QEMU's process, if
    /// it is known.
    fn serve(
        &mut self,
        mut machine_socket: OwnedFd,
        machine: Option<&OwnedFd>,
    ) -> anyhow::Result<()> {
        let Some(mut port) = self.machine(&mut machine_socket, machine)? else { return Ok(()) };
        let mut pause = Pause::new();
        loop {
            // Or the process that began to listen for it, as libvirt does.
            let qemu = pidfd::of_peer(port.as_fd()).ok();
            let daemon = pidfd::of_peer(machine_socket.as_fd()).ok();
            let begun = clock::now();
            // A proxy that ends may have left unread that the machine is parted with.
            let unread = machine_socket.try_clone();
            let over = self.carry(machine_socket, port);
            let is_over = |machine_socket: OwnedFd| {
                // Behind answers, if there are any.
                (0..64)
                    .any(|_| super::proxy::last_word(machine_socket.as_fd()) == ProxyEnd::Detached)
            };
            if unread.is_ok_and(is_over) {
                return Ok(());
            }
            match over {
                ProxyEnd::Detached => return Ok(()),
                ProxyEnd::Machine if self.place.connect().is_err() => return Ok(()),
                _ => {}
            }
            let lived = Duration::from_nanos(clock::now() - begun);
            // At once, so that the name is the machine's, and an operator can part with it.
            let Some(again) = self.attach_again(qemu.as_ref())? else { return Ok(()) };
            machine_socket = again;
            let died = [daemon.as_ref().map(|daemon| (daemon, PollFlags::IN))];
            let end = if wait(died, Some(Duration::ZERO))?[0] { End::Daemon } else { End::Other };
            let length = pause.after(lived, end);
            // QEMU sees that its socket is closed, and tells the guest.
            if !self.rest(&mut machine_socket, qemu.as_ref(), length)? {
                return Ok(());
            }
            let Ok(again) = self.place.connect() else { return Ok(()) };
            port = again;
        }
    }

    /// Runs a proxy, to its end.
    fn carry(&self, machine_socket: OwnedFd, port: OwnedFd) -> ProxyEnd {
        let mut proxy = Command::new(&self.program);
        proxy.args(CARRY).arg(self.window.head.number.to_string());
        proxy.stdin(machine_socket).stdout(port).stderr(Stdio::null());
        // An attacker in it finds nothing of our starter's.
        proxy.env_clear().current_dir("/");
        let running = self.pairs.start_proxy(&mut proxy);
        // With it go our ends of what it has.
        drop(proxy);
        // One that cannot be started now may be in a while.
        let ended = running.and_then(|mut running| Ok(running.wait()?));
        ended.map_or(ProxyEnd::Broken, |status| ProxyEnd::of(status.code()))
    }

    /// Waits until QEMU listens, and connects. `None`: it will not, or the machine is parted with.
    fn machine(
        &mut self,
        machine_socket: &mut OwnedFd,
        machine: Option<&OwnedFd>,
    ) -> anyhow::Result<Option<OwnedFd>> {
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        inotify::add_watch(&watch, self.place.qemu(), WatchFlags::CREATE)?;
        loop {
            if let Ok(port) = self.place.connect() {
                return Ok(Some(port));
            }
            // A socket made a moment ago listens in a moment.
            let limit = self.place.has_port().then_some(LOOK);
            let holder = self.holder.as_ref().map(|holder| &holder.life);
            let files = [Some(&watch), Some(&*machine_socket), machine, holder];
            let found = wait(files.map(|file| file.map(|file| (file, PollFlags::IN))), limit)?;
            if found[1] && !self.heard(machine_socket, machine)? || found[2] {
                return Ok(None);
            }
            if found[3] {
                // No process opens it any more.
                self.place.hide();
                self.end_holder();
            }
            let _ = rustix::io::read(&watch, &mut [0; WORDS]);
        }
    }

    fn end_holder(&mut self) {
        if let Some(holder) = self.holder.take() {
            holder.end();
        }
    }

    /// Lets this time pass. False: QEMU is gone meanwhile, or the machine parted with.
    fn rest(
        &self,
        machine_socket: &mut OwnedFd,
        mut qemu: Option<&OwnedFd>,
        pause: Duration,
    ) -> anyhow::Result<bool> {
        let end = clock::now() + u64::try_from(pause.as_nanos())?;
        loop {
            let left = Duration::from_nanos(end.saturating_sub(clock::now()));
            if left.is_zero() {
                return Ok(true);
            }
            let files =
                [Some(&*machine_socket), qemu].map(|file| file.map(|file| (file, PollFlags::IN)));
            let found = wait(files, Some(left))?;
            let over = found[1] && self.is_gone(&mut qemu);
            if over || found[0] && !self.heard(machine_socket, qemu)? {
                return Ok(false);
            }
        }
    }

    /// Whether the socket has no listener any more, now that this process has ended. Another
    /// process may listen, for which this one began to.
    fn is_gone(&self, qemu: &mut Option<&OwnedFd>) -> bool {
        *qemu = None;
        self.place.connect().is_err()
    }

    /// Something came at a machine socket that is not used: another one, unless the machine is
    /// parted with, or gone.
    fn heard(&self, machine_socket: &mut OwnedFd, qemu: Option<&OwnedFd>) -> anyhow::Result<bool> {
        if super::proxy::last_word(machine_socket.as_fd()) == ProxyEnd::Detached {
            return Ok(false);
        }
        let again = self.attach_again(qemu)?;
        Ok(again.map(|again| *machine_socket = again).is_some())
    }

    /// Attaches the machine when there is a daemon again; `None`: QEMU is gone, or the name is
    /// another machine's. `qemu`: the process that seems to be it.
    fn attach_again(&self, mut qemu: Option<&OwnedFd>) -> anyhow::Result<Option<OwnedFd>> {
        let mut taken = None;
        loop {
            let again = self.home.connect().map_err(anyhow::Error::from);
            let all = (&*self.window, &self.ledger, &*self.pairs, self.memory.as_ref());
            let again = again.and_then(|home| attach(&home, self.name, all));
            match again {
                Ok(Some(machine_socket)) => {
                    self.later.iter().for_each(|later| _ = later.send(()));
                    return Ok(Some(machine_socket));
                }
                Ok(None) if clock::now() - *taken.get_or_insert_with(clock::now) > TAKEN => {
                    return Ok(None);
                }
                Ok(None) => {}
                Err(_) => taken = None,
            }
            let over = wait([qemu.map(|qemu| (qemu, PollFlags::IN))], Some(LOOK))?[0];
            if over && self.is_gone(&mut qemu) {
                return Ok(None);
            }
        }
    }
}

fn attach(
    operator: &Operator,
    name: MachineName,
    (window, ledger, pairs, memory): (&Window, &OwnedFd, &Pairs, Option<&Memory>),
) -> anyhow::Result<Option<OwnedFd>> {
    let field = vnic::name_bytes(name.text())?;
    let files = [&window.file, ledger];
    let Some(machine_socket) = operator.attach_machine(field, window.data, files, name.text())?
    else {
        return Ok(None);
    };
    pairs.attach(operator, field);
    // Last: a daemon that does not know the message hangs up.
    memory.into_iter().for_each(|memory| memory.attach(operator, field));
    Ok(Some(machine_socket))
}

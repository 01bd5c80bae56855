//! The broker of carried sockets (docs/decisions/0046): a helper process of the daemon.
//!
//! A process that has a connected socket of TCP sends a duplicate of it, as proof. If the process
//! at the other end does so, too, both are given the memory of a link, and go on without us.
//!
//! What processes send are descriptors of any kind, and letting go of one can take as long as who
//! sent it likes (docs/decisions/0019). So this is a process of its own, which holds nothing else,
//! and each process that connects has a thread here: it can keep that waiting, and nobody else.
//! Nothing waits for a process: what one does not take is not sent.
#![forbid(unsafe_code)]

mod attend;
mod client;
mod limits;
mod offers;
mod shared;

use crate::client::Client;
use crate::shared::Broker;
use omniverb_sys::{Poller, lock, socket};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// What it is called as a helper.
pub const BROKER: &str = "broker";
/// Bytes of the stack of a thread.
const STACK: usize = 128 << 10;
/// How long nobody is let in when there is no room for another.
const PAUSE: Duration = Duration::from_millis(100);

/// The helper's own life: it is sent the socket to listen at, and ends with `order`.
pub fn serve(order: OwnedFd) {
    let mut byte = [0; 1];
    let received = socket::receive(order.as_fd(), &mut byte, socket::Mode::Blocking);
    let Ok((1, mut files)) = received else { return };
    let Some(listener) = files.pop() else { return };
    let broker = Arc::new(Broker::default());
    _ = listen(&order, &listener, &broker);
    // Threads that attend to somebody end with his connection.
    for client in lock(&broker.clients).drain(..).filter_map(|client| client.upgrade()) {
        socket::shut(client.socket.as_fd());
    }
}

fn listen(order: &OwnedFd, listener: &OwnedFd, broker: &Arc<Broker>) -> io::Result<()> {
    const ORDER: u64 = 0;
    const CONNECTION: u64 = 1;
    let poller = Poller::new()?;
    poller.add(order.as_fd(), ORDER)?;
    poller.add(listener.as_fd(), CONNECTION)?;
    let mut ready = Vec::new();
    loop {
        poller.wait(None, &mut ready)?;
        if ready.contains(&ORDER) {
            return Ok(());
        }
        match socket::accept(listener.as_fd()) {
            Ok(Some(calls)) => admit(calls, broker),
            Ok(None) => {}
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

fn admit(calls: OwnedFd, broker: &Arc<Broker>) {
    let Ok(peer) = socket::peer(calls.as_fd()) else { return };
    let Ok(client) = Client::new(calls, peer.uid) else { return };
    let client = Arc::new(client);
    {
        let mut clients = lock(&broker.clients);
        clients.retain(|one| one.strong_count() > 0);
        let of_user = clients.iter().filter_map(Weak::upgrade);
        let of_user = of_user.filter(|one| one.user == peer.uid).count();
        if clients.len() >= limits::PROCESSES || of_user >= limits::PROCESSES_OF_USER {
            return;
        }
        clients.push(Arc::downgrade(&client));
    }
    let broker = broker.clone();
    let thread = thread::Builder::new().name("attend".into()).stack_size(STACK);
    // Who finds no room sees the end of his connection.
    _ = thread.spawn(move || attend::attend(&broker, &client));
}

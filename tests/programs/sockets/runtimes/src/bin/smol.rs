//! A server and a client on smol, whose reactor waits by system calls of its own.

use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::time::Duration;

use runtimes::{CONNECTIONS, REQUESTS, report, request, size, task};
use smol::Timer;
use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::{TcpListener, TcpStream};

async fn serve(mut near: TcpStream) -> io::Result<()> {
    near.set_nodelay(true)?;
    let mut head = [0; 4];
    while near.read_exact(&mut head).await.is_ok() {
        let mut data = vec![0; size(head)];
        near.read_exact(&mut data).await?;
        data.make_ascii_uppercase();
        near.write_all(&[&head[..], &data].concat()).await?;
    }
    near.close().await
}

async fn ask(port: u16) -> io::Result<usize> {
    let mut input = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    input.set_nodelay(true)?;
    let mut output = input.clone();
    let sender = smol::spawn(async move {
        for number in 0..REQUESTS {
            output.write_all(&request(number)).await?;
        }
        output.close().await
    });
    let mut found = 0;
    for number in 0..REQUESTS {
        let wanted = request(number).to_ascii_uppercase();
        let mut data = vec![0; wanted.len()];
        input.read_exact(&mut data).await?;
        found += usize::from(data == wanted);
        if number % 16 == 0 {
            Timer::after(Duration::from_millis(1)).await;
        }
    }
    sender.await?;
    assert_eq!(input.read(&mut [0]).await?, 0);
    Ok(found)
}

async fn run() -> io::Result<()> {
    let (is_server, port) = task();
    if is_server {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        loop {
            let (near, _) = listener.accept().await?;
            smol::spawn(serve(near)).detach();
        }
    }
    let all: Vec<_> = (0..CONNECTIONS).map(|_| smol::spawn(ask(port))).collect();
    let mut answers = Vec::new();
    for one in all {
        answers.push(one.await?);
    }
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, 1)).await;
    report(&answers, refused.map_or_else(|error| error.kind(), |_| ErrorKind::Other));
    Ok(())
}

fn main() -> io::Result<()> {
    smol::block_on(run())
}

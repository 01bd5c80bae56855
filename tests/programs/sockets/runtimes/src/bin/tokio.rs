//! A server and a client on tokio: two workers, halves of a connection in tasks of their own.

use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::time::Duration;

use runtimes::{CONNECTIONS, REQUESTS, report, request, size, task};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn serve(mut near: TcpStream) -> io::Result<()> {
    near.set_nodelay(true)?;
    let (mut input, mut output) = near.split();
    let mut head = [0; 4];
    while input.read_exact(&mut head).await.is_ok() {
        let mut data = vec![0; size(head)];
        input.read_exact(&mut data).await?;
        data.make_ascii_uppercase();
        output.write_all(&[&head[..], &data].concat()).await?;
    }
    output.shutdown().await
}

async fn ask(port: u16) -> io::Result<usize> {
    let near = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    near.set_nodelay(true)?;
    let (mut input, mut output) = near.into_split();
    let sender = tokio::spawn(async move {
        for number in 0..REQUESTS {
            output.write_all(&request(number)).await?;
        }
        output.shutdown().await
    });
    let mut found = 0;
    for number in 0..REQUESTS {
        let wanted = request(number).to_ascii_uppercase();
        let mut data = vec![0; wanted.len()];
        input.read_exact(&mut data).await?;
        found += usize::from(data == wanted);
        if number % 16 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    sender.await.expect("a task")?;
    assert_eq!(input.read(&mut [0]).await?, 0);
    Ok(found)
}

async fn run() -> io::Result<()> {
    let (is_server, port) = task();
    if is_server {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        loop {
            let (near, _) = listener.accept().await?;
            tokio::spawn(serve(near));
        }
    }
    let all: Vec<_> = (0..CONNECTIONS).map(|_| tokio::spawn(ask(port))).collect();
    let mut answers = Vec::new();
    for one in all {
        answers.push(one.await.expect("a task")?);
    }
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, 1)).await;
    report(&answers, refused.map_or_else(|error| error.kind(), |_| ErrorKind::Other));
    Ok(())
}

fn main() -> io::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build()?.block_on(run())
}

//! Requests and answers of the programs beside this: a length of four bytes, so many bytes, which
//! come back in upper case.

/// Connections of a client at a time, and requests of each.
pub const CONNECTIONS: usize = 12;
/// Requests of a connection.
pub const REQUESTS: usize = 40;

/// The port that the command line names, behind `serve` or `ask`, and whether it is to serve.
pub fn task() -> (bool, u16) {
    let words: Vec<_> = std::env::args().collect();
    (words[1] == "serve", words[2].parse().expect("a port"))
}

/// A request, with its length.
pub fn request(number: usize) -> Vec<u8> {
    let size = [0, 1, 700, 5000, 3, 70_000][number % 6];
    let head = u32::to_be_bytes(size as u32);
    head.into_iter().chain((0..size).map(|at| b'a' + ((at * 7 + number) % 26) as u8)).collect()
}

/// How many bytes follow this length.
pub fn size(head: [u8; 4]) -> usize {
    u32::from_be_bytes(head) as usize
}

/// Says what a client has found: what each connection has had answered.
pub fn report(answers: &[usize], refused: std::io::ErrorKind) {
    println!("{} of {} answers", answers.iter().sum::<usize>(), CONNECTIONS * REQUESTS);
    println!("refused: {refused}");
}

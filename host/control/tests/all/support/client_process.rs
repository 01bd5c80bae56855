//! Runs a client in its own process, controlled by lines of hexadecimal digits.

use super::*;
use omniverb_terms::Errno;

/// Set for the second life of the test program: the daemon's socket.
const VARIABLE: &str = "OMNIVERB_TEST_SOCKET";

pub struct Remote {
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

fn hex(message: &Message) -> String {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let length = encode(0, message, &mut bytes);
    bytes[..length].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Message {
    let digits: Vec<u8> = (0..text.len() / 2)
        .map(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).unwrap())
        .collect();
    decode(&digits).unwrap().1
}

impl Remote {
    /// In the namespace of process `pid`, or in ours.
    pub fn start(path: &Path, pid: Option<u32>) -> Remote {
        let program = std::env::current_exe().unwrap();
        let mut command = match pid {
            Some(pid) => {
                let mut command = Command::new("nsenter");
                command.args(["-t", &pid.to_string(), "-n"]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args([
            "--exact",
            "support::client_process::remote_client",
            "--nocapture",
            "--test-threads=1",
        ]);
        let mut child = command
            .env(VARIABLE, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Remote { child, input, output }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        loop {
            let mut answer = String::new();
            assert_ne!(self.output.read_line(&mut answer).unwrap(), 0, "the client has died");
            // The test program says other things as well, on the same line even.
            if let Some(at) = answer.find("-> ") {
                return answer[at + 3..].trim().to_owned();
            }
        }
    }

    /// Says hello; an errno if that is refused.
    pub fn hello(&mut self) -> Result<(), Errno> {
        match unhex(&self.ask("hello")) {
            Message::Welcome(_) => Ok(()),
            Message::Failed(errno) => Err(errno),
            other => panic!("{other:?}"),
        }
    }

    /// Says hello as a process does whose daemon went away.
    pub fn come_back(&mut self) {
        assert!(matches!(unhex(&self.ask("hello again")), Message::Welcome(_)));
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Speaker for Remote {
    fn call(&mut self, message: Message) -> Message {
        let line = format!("call {}", hex(&message));
        patiently(|| unhex(&self.ask(&line)))
    }

    fn next_event(&mut self, wait: Duration) -> Option<(Message, usize)> {
        let answer = self.ask(&format!("event {}", wait.as_millis()));
        let (message, files) = answer.split_once(' ')?;
        Some((unhex(message), files.parse().unwrap()))
    }

    fn say(&mut self, message: Message) {
        self.ask(&format!("say {}", hex(&message)));
    }
}

/// The second life of the program; does nothing in the first.
#[test]
fn remote_client() {
    let Ok(path) = std::env::var(VARIABLE) else { return };
    let mut client = Client::connect(Path::new(&path));
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match verb {
            "hello" => {
                let resume = u32::from(rest == "again");
                let hello = Hello { role: ROLE_VERBS, resume, name: *b"remote client\0\0\0" };
                let (answer, mut files) = client.call_with(hello, &[]);
                if let Message::Welcome(Welcome { area, .. }) = &answer {
                    client.area = files.pop().map(|file| (file, *area));
                }
                client.events = files.pop();
                println!("-> {}", hex(&answer));
            }
            "call" => println!("-> {}", hex(&client.call_with(unhex(rest), &[]).0)),
            "say" => {
                client.say(unhex(rest));
                println!("-> said");
            }
            "event" => {
                let wait = Duration::from_millis(rest.parse().unwrap());
                match client.event(wait) {
                    Some((message, files)) => println!("-> {} {}", hex(&message), files.len()),
                    None => println!("-> none"),
                }
            }
            _ => panic!("{line}"),
        }
    }
}

//! Reads HTTP requests of scrapers and makes the heads of answers, without I/O.
//!
//! Invariant: any bytes have a verdict, and a head of [`REQUEST_BYTES_MAX`] bytes without an end is
//! refused, so a connection never keeps more.

/// Budget: bytes of a request's head.
pub(crate) const REQUEST_BYTES_MAX: usize = 4096;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All metrics, as OpenMetrics text.
    Metrics,
    /// Their head only.
    Head,
}

/// What the bytes so far are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The beginning of a request.
    Incomplete,
    Complete(Wanted),
    Refused(Refusal),
}

/// Why a request gets no metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    BadRequest,
    NotFound,
    MethodNotAllowed,
    TooLong,
    /// The daemon does not answer, or too many are connected.
    Unavailable,
}

impl Refusal {
    pub(crate) fn status(self) -> &'static str {
        match self {
            Refusal::BadRequest => "400 Bad Request",
            Refusal::NotFound => "404 Not Found",
            Refusal::MethodNotAllowed => "405 Method Not Allowed",
            Refusal::TooLong => "431 Request Header Fields Too Large",
            Refusal::Unavailable => "503 Service Unavailable",
        }
    }

    /// Text for a person that reads the answer.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Refusal::BadRequest => "this is no HTTP/1 request\n",
            Refusal::NotFound => "metrics are at /metrics\n",
            Refusal::MethodNotAllowed => "use GET or HEAD\n",
            Refusal::TooLong => "the head of the request is too long\n",
            Refusal::Unavailable => "try again later\n",
        }
    }
}

/// Reads the bytes that a connection has sent so far.
pub(crate) fn read(bytes: &[u8]) -> Verdict {
    let head = bytes.get(..REQUEST_BYTES_MAX).unwrap_or(bytes);
    match head.windows(4).position(|four| four == b"\r\n\r\n") {
        None if head.len() < REQUEST_BYTES_MAX => Verdict::Incomplete,
        None => Verdict::Refused(Refusal::TooLong),
        Some(end) => match wanted(head.get(..end).unwrap_or_default()) {
            Ok(wanted) => Verdict::Complete(wanted),
            Err(refusal) => Verdict::Refused(refusal),
        },
    }
}

/// What the first line of a whole head asks for.
fn wanted(head: &[u8]) -> Result<Wanted, Refusal> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| Refusal::BadRequest)?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refusal::BadRequest);
    };
    if !matches!(version, "HTTP/1.0" | "HTTP/1.1") || target.is_empty() {
        return Err(Refusal::BadRequest);
    }
    let wanted = match method {
        "GET" => Wanted::Metrics,
        "HEAD" => Wanted::Head,
        _ => return Err(Refusal::MethodNotAllowed),
    };
    let path = target.split('?').next().unwrap_or_default();
    if path == "/metrics" { Ok(wanted) } else { Err(Refusal::NotFound) }
}

/// The head of an answer with a body of `length` bytes.
pub(crate) fn head(status: &str, content_type: &str, length: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(line: &str) -> Verdict {
        read(format!("{line}\r\nHost: x\r\n\r\n").as_bytes())
    }

    #[test]
    fn requests_get_metrics_or_a_refusal() {
        for (line, wanted) in [
            ("GET /metrics HTTP/1.1", Wanted::Metrics),
            ("GET /metrics?name=x HTTP/1.0", Wanted::Metrics),
            ("HEAD /metrics HTTP/1.1", Wanted::Head),
        ] {
            assert_eq!(verdict(line), Verdict::Complete(wanted), "{line}");
        }
        for (line, refusal) in [
            ("GET / HTTP/1.1", Refusal::NotFound),
            ("GET /metricsx HTTP/1.1", Refusal::NotFound),
            ("POST /metrics HTTP/1.1", Refusal::MethodNotAllowed),
            ("", Refusal::BadRequest),
            ("GET", Refusal::BadRequest),
            ("GET /metrics", Refusal::BadRequest),
            ("GET /metrics HTTP/2", Refusal::BadRequest),
            ("GET  /metrics HTTP/1.1", Refusal::BadRequest),
            ("GET /metrics HTTP/1.1 x", Refusal::BadRequest),
        ] {
            assert_eq!(verdict(line), Verdict::Refused(refusal), "{line}");
        }
        assert_eq!(read(b"\xff /metrics HTTP/1.1\r\n\r\n"), Verdict::Refused(Refusal::BadRequest));
        // Bytes behind the head do not count: each connection has one request.
        let two = b"GET /metrics HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\n\r\n";
        assert_eq!(read(two), Verdict::Complete(Wanted::Metrics));
    }

    #[test]
    fn a_partial_request_waits_and_a_long_one_is_refused() {
        let whole = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]), Verdict::Incomplete, "{length}");
        }
        let long = vec![b'x'; REQUEST_BYTES_MAX];
        assert_eq!(read(&long[..REQUEST_BYTES_MAX - 1]), Verdict::Incomplete);
        assert_eq!(read(&long), Verdict::Refused(Refusal::TooLong));
        let ended = [&long[..], b"\r\n\r\n"].concat();
        assert_eq!(read(&ended), Verdict::Refused(Refusal::TooLong));
    }
}

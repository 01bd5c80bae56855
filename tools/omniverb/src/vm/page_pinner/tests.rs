//! Tests which pages are pinned, and how many.

use super::*;

const PAGE: u64 = 4096;

fn pins(in_place: InPlace) -> Pins {
    let mut pins = Pins::new(in_place);
    (pins.may_keep, pins.most) = (true, (2, 4 * PAGE));
    pins
}

/// A socket that this process has connected.
fn calls() -> (OwnedFd, OwnedFd) {
    seqpacket::pair().unwrap()
}

fn asked(token: u64, length: u64) -> Pin {
    use omniverb_terms::{Qpn, Rkey};
    Pin { token, rkey: Rkey(1), qpn: Qpn(2), start: PAGE, length }
}

fn null() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

#[test]
fn an_untrusted_source_is_not_asked() {
    let (calls, _other) = calls();
    let asks = |pins: &Pins| pins.may_be_asked(calls.as_fd(), &asked(1, PAGE));
    assert_eq!(asks(&pins(InPlace::Nobody)), Err(Errno::EPERM));
    assert_eq!(asks(&pins(InPlace::All)), Ok(()));
    let root = page_location::may(std::process::id().cast_signed(), page_location::ANYTHING);
    let expected = if root { Ok(()) } else { Err(Errno::EPERM) };
    assert_eq!(asks(&pins(InPlace::Root)), expected);
    // Rings that no heir would take over are not kept.
    let alone = Pins { may_keep: false, ..pins(InPlace::All) };
    assert_eq!(asks(&alone), Err(Errno::EAGAIN));
}

#[test]
fn requests_for_pages_stay_within_the_limit() {
    let (calls, _other) = calls();
    let mut pins = pins(InPlace::All);
    let asks = |pins: &Pins, length| pins.may_be_asked(calls.as_fd(), &asked(9, length));
    assert_eq!(asks(&pins, 4 * PAGE), Ok(()));
    for many in [5 * PAGE, u64::MAX] {
        assert_eq!(asks(&pins, many), Err(Errno::EAGAIN), "{many}");
    }
    pins.kept.add(1, null(), 3 * PAGE);
    assert_eq!((asks(&pins, PAGE), asks(&pins, 2 * PAGE)), (Ok(()), Err(Errno::EAGAIN)));
    pins.kept.add(2, null(), 0);
    assert_eq!(asks(&pins, PAGE), Err(Errno::EAGAIN), "each has a descriptor");
    pins.kept.let_go(1);
    assert_eq!(asks(&pins, 4 * PAGE), Ok(()), "there is room again");
    assert!(pins_max() > 0 && pins_max() <= PINS_MAX);
}

/// A question comes back to be asked, or is answered at once.
#[test]
fn a_question_is_passed_on_or_answered() {
    let (calls, _other) = calls();
    let (agent, hears) = seqpacket::pair().unwrap();
    let mut pins = pins(InPlace::All);
    let mut ask = |in_place, length| {
        pins.in_place = in_place;
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let size = encode_said(0, &asked(7, length).into(), &mut bytes);
        let said = [&5_u32.to_ne_bytes(), &bytes[..size]].concat();
        assert!(pins.looked(agent.as_fd(), calls.as_fd(), &said));
        let (size, _) =
            seqpacket::receive(hears.as_fd(), &mut bytes, seqpacket::BlockingMode::NonBlocking)
                .unwrap();
        let told = match decode(&bytes[..size]) {
            Ok((5, Message::TellPinned(told))) => Some((told.token, told.errno)),
            _ => None,
        };
        (decode_said(&bytes[..size]).ok(), told)
    };
    assert_eq!(ask(InPlace::All, PAGE), (Some((5, asked(7, PAGE).into())), None));
    assert_eq!(ask(InPlace::All, 5 * PAGE), (None, Some((7, Errno::EAGAIN))));
    assert_eq!(ask(InPlace::Nobody, PAGE), (None, Some((7, Errno::EPERM))));
}

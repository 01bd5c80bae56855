//! Tests which windows a guest finds, and which it takes for its own.

use super::*;
use crate::vm::machine_window::{STEP, Window};
use omniverb_session::vm::MachineName;
use rustix::io::pwrite;

/// As a machine sees a file.
fn device(window: &Window) -> Device {
    let mut bytes = vec![0; PAGE as usize];
    rustix::io::pread(&window.file, &mut bytes, window.data.offset).unwrap();
    let seen = omniverb_sys::memfd::create("seen", window.data.length).unwrap();
    pwrite(&seen, &bytes, 0).unwrap();
    let (head, names) = beginning(&seen, 0).unwrap();
    Device::whole(seen, head, names)
}

fn machine(name: &str) -> (Window, Vec<Window>) {
    let own = Window::new(MachineName::new(name).unwrap(), STEP).unwrap();
    let make = |number| {
        let pair = own.pair(STEP).unwrap();
        own.tell(number, &pair, WindowOwner::Own).unwrap();
        pair
    };
    let pairs = (1..=3).map(make).collect();
    (own, pairs)
}

fn found(windows: &[&Window]) -> FoundWindows {
    let devices = windows.iter().map(|one| device(one)).collect();
    FoundWindows { devices, places: Vec::new(), other_version: None }
}

fn numbers(found: &FoundWindows, own: &OwnWindow) -> Vec<u8> {
    found.pairs(own).into_keys().collect()
}

#[test]
fn windows_are_recognized_in_any_order() {
    let (own, pairs) = machine("web-1");
    let all = found(&[&pairs[2], &own, &pairs[0], &pairs[1]]);
    let [one] = &all.own()[..] else { panic!() };
    assert_eq!((one.number, numbers(&all, one)), (own.head.number, vec![1, 2, 3]));
    assert!(all.is_complete());
    let some = found(&[&own, &pairs[1]]);
    assert_eq!(numbers(&some, &some.own()[0]), [2]);
    assert!(!some.is_complete());
}

/// Its name is written when the guest has read the others' long since.
#[test]
fn a_later_window_is_recognized() {
    let (own, pairs) = machine("web-1");
    let mut all = found(&[&own, &pairs[0]]);
    let later = own.pair(STEP).unwrap();
    own.tell(4, &later, WindowOwner::Own).unwrap();
    // A machine sees the same memory: here the copy that stands for it.
    let names = device(&own).names;
    let mut bytes = [0; PairNames::BYTES];
    bytes.copy_from_slice(&names.written());
    pwrite(&all.devices[0].file, &bytes, PairNames::OFFSET as u64).unwrap();
    let Device { file, .. } = device(&later);
    let again = file.try_clone().unwrap();
    all.add(Arc::into_inner(file).unwrap()).unwrap();
    assert_eq!(numbers(&all, &all.own()[0]), [1, 4]);
    let kind = all.add(again).unwrap_err().kind();
    assert_eq!(kind, io::ErrorKind::AlreadyExists);
    let nothing = omniverb_sys::memfd::create("short", 64).unwrap();
    assert!(all.add(nothing).is_err());
}

/// A neighbour may write anything into its window.
#[test]
fn claiming_a_window_does_not_give_it() {
    let (own, pairs) = machine("web-1");
    let write = |bytes: &[u8], at: u64| {
        pwrite(&pairs[0].file, bytes, pairs[0].data.offset + at).unwrap();
    };
    // That of another, whose name it would have to know.
    write(&pairs[1].head.written(), 0);
    let all = found(&[&own, &pairs[0], &pairs[1], &pairs[2]]);
    assert_eq!(numbers(&all, &all.own()[0]), [3], "neither of the two");
    // The machine's own: the host knows another number.
    let forged = WindowHead { number: 5, ..own.head };
    write(&forged.written(), 0);
    let all = found(&[&pairs[0], &own, &pairs[1], &pairs[2]]);
    let claims: Vec<u64> = all.own().iter().map(|own| own.number).collect();
    assert_eq!(claims, [5, own.head.number]);
    assert_eq!(numbers(&all, &all.own()[1]), [2, 3]);
    // Larger than it is.
    write(&WindowHead { bytes: u64::MAX, ..pairs[0].head }.written(), 0);
    let all = found(&[&own, &pairs[0]]);
    assert_eq!(numbers(&all, &all.own()[0]), [] as [u8; 0]);
}

/// Where windows are mapped into one device each has its place, and may come and go.
#[test]
fn windows_have_places_in_one_device() {
    let (own, pairs) = machine("web-1");
    let slots = Slots { bytes: STEP, count: 3 };
    let beginning = slots.beginning(&own.head).unwrap();
    let bytes = slots.at(4);
    let places = omniverb_sys::memfd::create("places", bytes).unwrap();
    let copy = |from: &OwnedFd, from_at: u64, to: u64| {
        let mut page = vec![0; PAGE as usize];
        rustix::io::pread(from, &mut page, from_at).unwrap();
        pwrite(&places, &page, to).unwrap();
    };
    copy(&beginning, own.data.offset, 0);
    let map = |number: u8| {
        let pair = &pairs[usize::from(number) - 1];
        copy(&pair.file, pair.data.offset, slots.at(number));
    };
    map(1);
    map(3);
    let mut all = found(&[&own]);
    all.add(places.try_clone().unwrap()).unwrap();
    let one = |all: &FoundWindows| all.own().into_iter().next().unwrap();
    let seen = all.pairs(&one(&all));
    assert_eq!(seen.keys().copied().collect::<Vec<_>>(), [1, 3]);
    let third = &seen[&3];
    assert!(third.is_mapped && third.data.offset == slots.at(3), "{:?}", third.data);
    assert_eq!(third.data.length, pairs[2].data.length);
    // One comes, one goes.
    map(2);
    all.look_at_places(0b011);
    assert_eq!(numbers(&all, &one(&all)), [1, 2]);
    // A neighbour's window that begins as that device does, but for what the host calls the
    // own one.
    for all in [&mut all, &mut found(&[&own])] {
        let forged = WindowHead { number: 5, ..super::beginning(&places, 0).unwrap().0 };
        let claims = omniverb_sys::memfd::create("claims", bytes).unwrap();
        pwrite(&claims, &forged.written(), 0).unwrap();
        all.add(claims).unwrap();
        let _ = all.add(places.try_clone().unwrap());
        all.look_at_places(u64::MAX);
        assert_eq!(numbers(all, &one(all)), [1, 2, 3]);
    }
    // Another window has come to a place: it is not called what that one was.
    let seen = all.pairs(&one(&all));
    assert!(seen.iter().all(|(number, shared)| shared.is_called(*number, &one(&all))));
    let own_device = all.devices.iter().position(Device::is_own).unwrap();
    let name = PairNames::offset_of(3) as u64;
    pwrite(&all.devices[own_device].file, &7_u64.to_ne_bytes(), name).unwrap();
    all.look_at_names();
    let called = |number: u8| seen[&number].is_called(number, &one(&all));
    assert_eq!([1, 2, 3].map(called), [true, true, false]);
    let names = pairs[2].head.number.to_ne_bytes();
    pwrite(&all.devices[own_device].file, &names, name).unwrap();
    // One that says it reaches into its neighbour's place, and one that says it is the
    // machine's own.
    let write = |head: WindowHead, number| {
        pwrite(&places, &head.written(), slots.at(number)).unwrap();
    };
    write(WindowHead { bytes: STEP, ..pairs[0].head }, 1);
    write(own.head, 2);
    all.look_at_places(u64::MAX);
    assert_eq!((numbers(&all, &one(&all)), all.own().len()), (vec![3], 1));
}

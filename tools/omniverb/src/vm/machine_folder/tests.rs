//! Tests machines' folders, and which users may do what in them.

use super::*;
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn users_have_names_and_numbers() {
    let list = "root:x:0:0:root:/:/bin/sh\nqemu:x:107:64055::/none:/bin/false\nx:x:y:1\n";
    assert_eq!(named("qemu", list), Some(User { uid: 107, gid: 64055 }));
    assert_eq!(named("root", list), Some(User { uid: 0, gid: 0 }));
    for unknown in ["", "qem", "x", "107"] {
        assert_eq!(named(unknown, list), None, "{unknown}");
    }
    assert_eq!("1:2".parse(), Ok(User { uid: 1, gid: 2 }));
    assert_eq!(User { uid: 1, gid: 2 }.to_string(), "1:2");
    assert!("1:".parse::<User>().is_err());
}

fn folder(what: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("omniverb-place-{what}-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    folder
}

fn listen(path: String) -> std::os::unix::net::UnixListener {
    std::os::unix::net::UnixListener::bind(path).unwrap()
}

#[test]
fn a_place_is_there_for_a_while_and_leads_to_sockets_only() {
    let name = MachineName::new("web-1").unwrap();
    let beside = folder("while");
    let all = beside.join("machines");
    let mut place = MachineFolder::make(&all, name, None).unwrap();
    assert!(place.connect().is_err());
    let other = beside.join("other");
    let _listener = listen(other.display().to_string());
    symlink(&other, place.port()).unwrap();
    assert!(place.connect().is_err(), "another's");
    std::fs::remove_file(place.port()).unwrap();
    let _listener = listen(place.port());
    place.connect().unwrap();
    place.show(&["/nowhere".to_owned(), "/nowhere/else".to_owned()]).unwrap();
    let again = MachineFolder::make(&all, name, None).unwrap();
    assert!(again.connect().is_err(), "what was left is gone");
    let _listener = listen(again.port());
    assert!(std::fs::symlink_metadata(again.window()).is_err());
    drop(place);
    again.connect().unwrap();
    drop(again);
    let empty = || std::fs::read_dir(&all).unwrap().next().is_none();
    while !empty() {
        std::thread::yield_now();
    }
    std::fs::remove_dir_all(&beside).unwrap();
}

#[test]
fn a_folder_that_cannot_be_removed_keeps_no_machine_out() {
    let name = MachineName::new("web-1").unwrap();
    let all = folder("deep");
    let place = MachineFolder::make(&all, name, None).unwrap();
    let mut at = openat(&place.qemu, ".", FOLDER, Mode::empty()).unwrap();
    for _ in 0..2000 {
        mkdirat(&at, "x", Mode::RWXU).unwrap();
        at = openat(&at, "x", FOLDER, Mode::empty()).unwrap();
    }
    drop(place);
    let again = MachineFolder::make(&all, name, None).unwrap();
    let _listener = listen(again.port());
    again.connect().unwrap();
    drop(again);
    assert!(std::process::Command::new("rm").arg("-rf").arg(&all).status().unwrap().success());
}

#[test]
fn a_folder_that_others_may_write_to_is_not_taken() {
    let name = MachineName::new("web-1").unwrap();
    let all = folder("taken");
    let make = |path: &Path| MachineFolder::make(path, name, None).err().map(|e| format!("{e:#}"));
    let modes = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&all, mode).unwrap();
    };
    for mode in [0o777, 0o1777, 0o770] {
        modes(mode);
        assert!(make(&all).unwrap().contains("others may write"), "{mode:o}");
    }
    modes(0o755);
    assert_eq!(make(&all), None);
    let link = all.join("link");
    symlink(&all, &link).unwrap();
    assert!(make(&link).is_some(), "a link");
    if geteuid().is_root() {
        std::os::unix::fs::chown(&all, Some(12345), None).unwrap();
        assert!(make(&all).unwrap().contains("belongs to another user"));
    }
    std::fs::remove_dir_all(&all).unwrap();
}

#[test]
fn a_user_without_access_is_told_the_folder() {
    if !geteuid().is_root() {
        return;
    }
    let user = User { uid: 4321, gid: 4322 };
    let top = folder("pass");
    let all = top.join("machines");
    let modes = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&top, mode).unwrap();
    };
    std::fs::create_dir(&all).unwrap();
    modes(0o750);
    assert_eq!(user.is_stopped_at(&all), Some(&*top));
    let name = MachineName::new("web-1").unwrap();
    let made = MachineFolder::make(&all, name, Some(user)).err().map(|e| e.to_string());
    assert!(made.is_some_and(|text| text.contains("4321:4322 may not pass")));
    modes(0o711);
    assert_eq!(user.is_stopped_at(&all), None);
    let place = MachineFolder::make(&all, name, Some(user)).unwrap();
    assert_eq!(fstat(&place.qemu).unwrap().st_uid, 4321);
    assert_eq!(fstat(&place.folder).unwrap().st_uid, 0);
    drop(place);
    std::fs::remove_dir_all(&top).unwrap();
}

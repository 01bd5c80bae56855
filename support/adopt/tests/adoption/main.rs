//! Tests what adoption promises, on processes that behave like foreign programs.
//!
//! Every scenario runs in a child process of its own, forked while this process has one thread, so
//! that it has exactly the threads it starts. Arguments that are not flags select scenarios by
//! part of their name; `--measure` prints the cost table of the decision record instead.
//! `OMNIVERB_ADOPT_CYCLES` sets the number of adopt/release cycles of the stress scenarios (`make
//! soak` does); without it they are few, and end after some time. `OMNIVERB_ADOPT_DEVICE` names a
//! device of memory that most of them move pages onto instead of a memfd; for virtual machines.

mod address_space_sharers;
mod concurrent_activity;
mod cost_measurement;
mod dax_device_pages;
mod direct_io;
mod extents_in_one_file;
mod fork;
mod immovable_pages;
mod io_uring;
mod many_descriptors;
mod memfd_access;
mod page_contents;
mod program_memory_policies;
mod raw_syscall_helpers;
mod rlimits;
mod stress;

use dax_device_pages::adopt_somewhere;
use omniverb_adopt::{Access, AdoptError, AdoptedPages, Strategy};
use std::time::Instant;

/// Result of a scenario that cannot run here, with the reason.
pub type Outcome = Result<(), String>;

const CYCLES: &str = "OMNIVERB_ADOPT_CYCLES";
const SKIPPED: i32 = 77;
/// For the default number of cycles; where more are asked for, a second for each, since several
/// processes make as many at once and the machine may be busy.
const DEADLINE_SECONDS: usize = 600;

struct Scenario {
    name: &'static str,
    unprivileged: bool,
    run: fn() -> Outcome,
}

const fn scenario(name: &'static str, run: fn() -> Outcome) -> Scenario {
    Scenario { name, unprivileged: false, run }
}

const fn as_nobody(name: &'static str, run: fn() -> Outcome) -> Scenario {
    Scenario { name, unprivileged: true, run }
}

const SCENARIOS: &[Scenario] = &[
    scenario("content_single", || page_contents::survives(Strategy::SingleThread)),
    scenario("content_userfault", || page_contents::survives(Strategy::Userfault)),
    scenario("content_stop", || page_contents::survives(Strategy::Stop)),
    scenario("content_large_userfault", || page_contents::large(Strategy::Userfault)),
    scenario("content_large_stop", || page_contents::large(Strategy::Stop)),
    scenario("sparse", page_contents::sparse),
    scenario("errno_and_mask", page_contents::errno_and_mask),
    scenario("stress_single", || stress::alone(Strategy::SingleThread)),
    scenario("stress_userfault", || stress::writers(Strategy::Userfault)),
    scenario("stress_stop", || stress::writers(Strategy::Stop)),
    scenario("stress_large_userfault", || stress::large_writers(Strategy::Userfault)),
    scenario("stress_large_stop", || stress::large_writers(Strategy::Stop)),
    scenario("kernel_stores_userfault", || stress::kernel_stores(Strategy::Userfault)),
    scenario("kernel_stores_stop", || stress::kernel_stores(Strategy::Stop)),
    scenario("sleepers_userfault", || stress::sleepers(Strategy::Userfault)),
    scenario("sleepers_stop", || stress::sleepers(Strategy::Stop)),
    scenario("threads_come_and_go_userfault", || stress::come_and_go(Strategy::Userfault)),
    scenario("threads_come_and_go_stop", || stress::come_and_go(Strategy::Stop)),
    scenario("direct_io_stop", concurrent_activity::direct_io),
    scenario("direct_io_excludes_userfault", concurrent_activity::direct_io_excludes_userfault),
    scenario("direct_io_in_another_table", direct_io::in_another_table),
    scenario("direct_io_in_another_process", direct_io::in_another_process),
    scenario("many_descriptors_are_not_protected", many_descriptors::too_many_to_look_at),
    scenario("many_descriptors_are_no_excuse", many_descriptors::released_all_the_same),
    scenario("direct_reads_another_table", direct_io::reads_by_another_table),
    scenario("direct_reads_changing_flags", direct_io::reads_by_a_changing_descriptor),
    scenario("direct_reads_closed_descriptor", direct_io::reads_by_a_closed_descriptor),
    scenario("direct_reads_not_to_be_stopped", direct_io::reads_that_cannot_be_stopped),
    scenario("spawning_userfault", || concurrent_activity::spawning(Strategy::Userfault)),
    scenario("spawning_stop", || concurrent_activity::spawning(Strategy::Stop)),
    scenario("signals_userfault", || concurrent_activity::signals(Strategy::Userfault)),
    scenario("signals_stop", || concurrent_activity::signals(Strategy::Stop)),
    scenario("gives_up", concurrent_activity::gives_up),
    scenario("helper_is_killed", concurrent_activity::helper_is_killed),
    scenario("privileges_given_up", concurrent_activity::privileges_given_up),
    scenario("closed_standard_streams", memfd_access::closed_standard_streams),
    scenario("fork_separates", fork::separates),
    scenario("fork_leaves_an_own_mapping_out", fork::leaves_an_own_mapping_out),
    scenario("fork_by_a_raw_system_call", fork::raw_clone),
    scenario("fork_while_moving_userfault", || fork::while_moving(Strategy::Userfault)),
    scenario("fork_while_moving_stop", || fork::while_moving(Strategy::Stop)),
    scenario("packed_come_and_go", extents_in_one_file::come_and_go),
    scenario("packed_fork_separates", extents_in_one_file::fork_separates),
    scenario("packed_read_only_is_refused", extents_in_one_file::read_only_is_refused),
    scenario("packed_zeros_are_zeros", extents_in_one_file::zeros_are_zeros),
    scenario("device_come_and_go", dax_device_pages::come_and_go),
    scenario("device_is_for_writers", dax_device_pages::is_for_writers),
    scenario("stale_mapping", memfd_access::stale_mapping),
    scenario("neighbours_stay_private", memfd_access::neighbours_stay_private),
    scenario("read_only_grant", memfd_access::read_only_grant),
    scenario("writable_grant", memfd_access::writable_grant),
    scenario("program_moves_pages", memfd_access::program_moves_pages),
    scenario("program_grows_pages", memfd_access::program_grows_pages),
    scenario("program_unmaps_pages", memfd_access::program_unmaps_pages),
    scenario("program_protects_pages", memfd_access::program_protects_pages),
    scenario("program_closes_descriptor", memfd_access::program_closes_descriptor),
    scenario("own_peer_stop", || program_memory_policies::own_peer(Strategy::Stop)),
    scenario("own_peer_userfault", || program_memory_policies::own_peer(Strategy::Userfault)),
    scenario("protection_holds", program_memory_policies::protection_holds),
    scenario("released_file_is_empty", rlimits::released_file_is_empty),
    scenario("released_without_address_space", rlimits::without_address_space),
    scenario("refused_where_files_are_limited", rlimits::refused_where_files_are_limited),
    scenario("refusals", immovable_pages::refusals),
    scenario("refused_arranged", immovable_pages::arranged),
    scenario("guards_stay", immovable_pages::guards_stay),
    scenario("refused_stacks", immovable_pages::stacks),
    scenario("refused_with_aio", immovable_pages::asynchronous_io),
    scenario("refused_ring_without_mapping", io_uring::without_mapping),
    scenario("refused_ring_of_another_thread", io_uring::in_another_table),
    scenario("refused_ring_with_buffers", io_uring::registered_only_with_buffers),
    scenario("refused_ring_with_thread", io_uring::registered_only_with_thread),
    scenario("refused_ring_that_is_waited_for", io_uring::registered_only_and_waited_for),
    scenario("refused_packet_socket", io_uring::packet_sockets),
    scenario("ring_buffers_stay", io_uring::buffers_registered_since),
    scenario("ring_buffers_meanwhile", io_uring::buffers_registered_meanwhile),
    scenario("ring_receives_while_pages_move", io_uring::receives_while_pages_move),
    scenario("sharer_excludes_single", address_space_sharers::one_thread_is_not_alone),
    scenario("sharer_stores_userfault", || address_space_sharers::stores(Strategy::Userfault)),
    scenario("sharer_stores_stop", || address_space_sharers::stores(Strategy::Stop)),
    scenario("sharer_stores_from_afar", address_space_sharers::stores_from_afar),
    scenario("sharers_come_and_go", address_space_sharers::come_and_go),
    scenario("sharers_come_and_go_anew", address_space_sharers::come_and_go_anew),
    scenario(
        "sharer_is_no_forked_child",
        address_space_sharers::forked_children_are_not_in_the_way,
    ),
    scenario("neighbours_move_pages", address_space_sharers::neighbours_move_pages),
    scenario(
        "neighbours_not_comparable",
        address_space_sharers::neighbours_that_cannot_be_compared,
    ),
    as_nobody("nobody_neighbours_move_pages", address_space_sharers::neighbours_move_pages),
    as_nobody(
        "nobody_neighbours_not_comparable",
        address_space_sharers::neighbours_that_cannot_be_compared,
    ),
    as_nobody("nobody_sharer_excludes_single", address_space_sharers::one_thread_is_not_alone),
    as_nobody("nobody_sharer_stores_stop", || address_space_sharers::stores(Strategy::Stop)),
    as_nobody("nobody_refused_ring", io_uring::without_mapping),
    as_nobody("nobody_refused_ring_buffers", io_uring::registered_only_with_buffers),
    as_nobody("nobody_refused_ring_waited_for", io_uring::registered_only_and_waited_for),
    as_nobody("nobody_ring_buffers_stay", io_uring::buffers_registered_since),
    as_nobody("nobody_ring_buffers_meanwhile", io_uring::buffers_registered_meanwhile),
    as_nobody("nobody_ring_receives", io_uring::receives_while_pages_move),
    as_nobody("nobody_refused_arranged", immovable_pages::arranged),
    as_nobody("nobody_guards_stay", immovable_pages::guards_stay),
    as_nobody("nobody_own_peer_stop", || program_memory_policies::own_peer(Strategy::Stop)),
    as_nobody("nobody_protection_holds", program_memory_policies::protection_holds),
    as_nobody("nobody_stress_single", || stress::alone(Strategy::SingleThread)),
    as_nobody("nobody_stress_stop", || stress::writers(Strategy::Stop)),
    as_nobody("nobody_kernel_stores_stop", || stress::kernel_stores(Strategy::Stop)),
    as_nobody("nobody_sleepers_stop", || stress::sleepers(Strategy::Stop)),
    as_nobody("nobody_may_not_userfault", immovable_pages::no_userfault),
    as_nobody("nobody_released_while_memory_locks", rlimits::while_memory_locks),
    as_nobody("nobody_released_without_space", rlimits::without_address_space),
];

/// Cycles of a stress scenario.
pub fn cycles(default: usize) -> usize {
    std::env::var(CYCLES).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// True if exactly so many cycles are wanted, however long they take.
pub fn cycles_are_given() -> bool {
    std::env::var_os(CYCLES).is_some()
}

/// Adopts pages, however often that has to be tried on a busy machine.
pub fn take(
    memory: raw_syscall_helpers::Memory,
    access: Access,
    strategy: Strategy,
) -> AdoptedPages {
    loop {
        match adopt_somewhere(memory, access, &[strategy]) {
            Err(AdoptError::Busy) => {}
            outcome => return outcome.unwrap(),
        }
    }
}

/// Releases pages, however often that has to be tried on a busy machine.
pub fn give_back(mut pages: AdoptedPages, ways: &[Strategy]) {
    while let Err(failed) = pages.release_with(ways) {
        assert_eq!(failed.error, AdoptError::Busy);
        pages = failed.pages;
    }
}

/// Why a strategy cannot be tried here, if so.
pub fn require(strategy: Strategy) -> Outcome {
    let memory = raw_syscall_helpers::Memory::anonymous(raw_syscall_helpers::PAGE);
    let mut outcome = adopt_somewhere(memory, Access::ReadWrite, &[strategy]);
    while outcome.as_ref().err() == Some(&AdoptError::Busy) {
        outcome = adopt_somewhere(memory, Access::ReadWrite, &[strategy]);
    }
    match outcome {
        Ok(pages) => {
            give_back(pages, &[strategy]);
            Ok(())
        }
        Err(AdoptError::NotPermitted) => Err(format!("{strategy:?} is not permitted here")),
        Err(other) => panic!("probe of {strategy:?}: {other}"),
    }
}

fn run(scenario: &Scenario) -> &'static str {
    let status = raw_syscall_helpers::in_child(|| {
        raw_syscall_helpers::set_deadline(DEADLINE_SECONDS.max(cycles(0)));
        if scenario.unprivileged {
            raw_syscall_helpers::become_nobody();
        }
        if let Err(reason) = (scenario.run)() {
            println!("    skipped: {reason}");
            std::process::exit(SKIPPED);
        }
    });
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => "ok",
        (true, SKIPPED) => "skipped",
        (true, _) => "FAILED",
        _ if libc::WTERMSIG(status) == libc::SIGALRM => "FAILED (hung)",
        _ => "FAILED (crashed)",
    }
}

fn main() {
    let (flags, names): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with('-'));
    if flags.iter().any(|flag| flag == "--measure") {
        return cost_measurement::table();
    }
    let root = rustix::process::geteuid().is_root();
    let mut failed = 0;
    for scenario in SCENARIOS {
        if !names.is_empty() && !names.iter().any(|name| scenario.name.contains(name.as_str())) {
            continue;
        }
        if scenario.unprivileged && !root {
            println!("{:<34} skipped: needs root to become somebody else", scenario.name);
            continue;
        }
        let begin = Instant::now();
        let verdict = run(scenario);
        println!("{:<34} {verdict} ({:.1} s)", scenario.name, begin.elapsed().as_secs_f64());
        failed += usize::from(verdict.starts_with("FAILED"));
    }
    if failed > 0 {
        println!("{failed} scenarios failed");
        std::process::exit(1);
    }
}

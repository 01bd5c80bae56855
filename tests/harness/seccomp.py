"""A seccomp profile for the test containers.

It refuses, with EPERM, the system calls that docker's and podman's default profiles refuse to a
container without added capabilities, among them those that would be tempting here: userfaultfd,
pidfd_getfd, process_vm_writev, ptrace, io_uring, bpf, perf_event_open, mount and setns.
"""

_REFUSED = """
    acct add_key bpf clock_adjtime clock_settime create_module delete_module fanotify_init
    finit_module fsconfig fsmount fsopen fspick get_mempolicy init_module io_uring_enter
    io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl
    lookup_dcookie mbind mount mount_setattr move_mount move_pages nfsservctl open_by_handle_at
    open_tree perf_event_open pidfd_getfd pivot_root process_madvise process_vm_readv
    process_vm_writev ptrace quotactl quotactl_fd reboot request_key set_mempolicy setns
    settimeofday stime swapoff swapon sysfs syslog umount umount2 unshare uselib userfaultfd
    ustat vhangup vm86 vm86old
""".split()

_EPERM, _ENOSYS = 1, 38
_CLONE_NEW_ANY = 0x7E020000


def profile():
    """The `linux.seccomp` object of an OCI configuration."""
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            {"names": _REFUSED, "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
            # The flags of clone3 lie in memory where no filter can look; glibc falls back.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
        ] + [
            {"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM,
             "args": [{"index": 0, "value": 1 << bit, "valueTwo": 1 << bit,
                       "op": "SCMP_CMP_MASKED_EQ"}]}
            for bit in range(32) if _CLONE_NEW_ANY >> bit & 1
        ],
    }

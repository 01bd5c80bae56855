"""Seccomp profiles for the test containers.

`profile()` refuses, with EPERM, what docker's and podman's default profiles refuse to a container
without added capabilities, among them calls that would be tempting here: userfaultfd, pidfd_getfd,
io_uring, bpf, perf_event_open, mount and setns. Those profiles allow ptrace and process_vm_writev
on kernels newer than 4.8; `profile(strict=True)` refuses these as well, as hardened set-ups do.
"""

_REFUSED = """
    acct add_key bpf clock_adjtime clock_settime create_module delete_module fanotify_init
    finit_module fsconfig fsmount fsopen fspick get_mempolicy init_module io_uring_enter
    io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl
    lookup_dcookie mbind mount mount_setattr move_mount move_pages nfsservctl open_by_handle_at
    open_tree perf_event_open pidfd_getfd pivot_root process_madvise quotactl quotactl_fd reboot
    request_key set_mempolicy setns settimeofday stime swapoff swapon sysfs syslog umount umount2
    unshare uselib userfaultfd ustat vhangup vm86 vm86old
""".split()

_STRICT = ["ptrace", "process_vm_readv", "process_vm_writev"]

_EPERM, _ENOSYS = 1, 38
_CLONE_NEW_ANY = 0x7E020000


def profile(strict=False):
    """The `linux.seccomp` object of an OCI configuration."""
    refused = _REFUSED + (_STRICT if strict else [])
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [
            {"names": refused, "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
            # The flags of clone3 lie in memory where no filter can look; glibc falls back.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
        ] + [
            {"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM,
             "args": [{"index": 0, "value": 1 << bit, "valueTwo": 1 << bit,
                       "op": "SCMP_CMP_MASKED_EQ"}]}
            for bit in range(32) if _CLONE_NEW_ANY >> bit & 1
        ],
    }

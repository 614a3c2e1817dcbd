/* Loaded into user-mode Linux before it starts: Debian 12's sets a process's registers from a buffer of fixed size,
 * which the kernel refuses on processors whose registers take more (AMX). Here the rest keeps its present values. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define XSTATE ((void *)0x202)

static long set_registers(long pid, const struct iovec *given) {
    static char all[1 << 16];
    struct iovec present = {all, sizeof all};
    if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, XSTATE, &present) < 0) return -1;
    memcpy(all, given->iov_base, given->iov_len < present.iov_len ? given->iov_len : present.iov_len);
    return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, XSTATE, &present);
}

long ptrace(enum __ptrace_request request, ...) {
    va_list rest;
    va_start(rest, request);
    long pid = va_arg(rest, int);
    void *address = va_arg(rest, void *);
    void *data = va_arg(rest, void *);
    va_end(rest);
    if (request == PTRACE_SETREGSET && address == XSTATE) return set_registers(pid, data);
    if (request != PTRACE_PEEKTEXT && request != PTRACE_PEEKDATA && request != PTRACE_PEEKUSER)
        return syscall(SYS_ptrace, (long)request, pid, address, data);
    long word;
    return syscall(SYS_ptrace, (long)request, pid, address, &word) < 0 ? -1 : word;
}

package calltrace

import "golang.org/x/sys/unix"

// callsHere are the calls that other architectures have under other names.
func callsHere() map[uint64]place {
	return map[uint64]place{unix.SYS_NEWFSTATAT: {name: "newfstatat", path: 1, alwaysReads: true}}
}

// skipCall lets the kernel take the call that begins for one that it lacks.
func skipCall(tid int) error {
	return changeRegs(tid, func(r *unix.PtraceRegs) { r.Orig_rax = ^uint64(0) })
}

// shortenCall changes how many bytes are to be written.
func shortenCall(tid int, bytes uint64) error {
	return changeRegs(tid, func(r *unix.PtraceRegs) { r.Rdx = bytes })
}

// answerCall is the result of a call that has ended.
func answerCall(tid int, result int64) error {
	return changeRegs(tid, func(r *unix.PtraceRegs) { r.Rax = uint64(result) })
}

func changeRegs(tid int, change func(*unix.PtraceRegs)) error {
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &regs); err != nil {
		return err
	}
	change(&regs)
	return unix.PtraceSetRegs(tid, &regs)
}

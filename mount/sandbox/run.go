package sandbox

import (
	"context"
	"time"
)

// endAfter is how long a program that was killed is waited for, and what still
// holds its output.
const endAfter = 5 * time.Second

// Run runs the program to its end and returns its exit code as a shell's $?: 128+n where
// signal n ended it. It is safe for concurrent use.
//
//   - When ctx ends the program is killed (SIGKILL), and Run returns 137 and the cause of
//     ctx. To end it politely, send a signal by [Config].Signals first.
//   - If the program could not be begun, the error is an *[Error] and the code its
//     [Error.ExitCode].
//   - Nothing stays in the caller's mount namespace but the program's own mounts in a
//     Bidirectional mount.
//   - If the caller is killed, the program is too.
func Run(ctx context.Context, c Config) (code int, err error) {
	p, err := Start(ctx, c)
	if err != nil {
		return exitCodeOf(err), err
	}
	select {
	case <-p.done:
		return p.Wait()
	case <-ctx.Done():
	}
	if !p.endsSoon() {
		return killedCode, context.Cause(ctx)
	}
	return p.Wait()
}

package sandbox

import (
	"context"
	"time"
)

// endAfter is how long a program that was killed is waited for, and what still
// holds its output.
const endAfter = 5 * time.Second

// Run runs the program to its end and returns its exit code as a shell's $?:
// 128+n where signal n ended it. When ctx ends the program is killed (SIGKILL;
// whoever wants it to end politely sends a signal by [Config].Signals first), and
// Run returns 137 and the cause of ctx.
//
// Where the program could not be begun, the error is an *[Error], and the code
// that error's [Error.ExitCode]. Nothing is left in the caller's mount
// namespace then or later, but what the program has mounted itself in a
// Bidirectional mount. Should the caller itself be killed, the program is
// too. Safe for concurrent use.
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

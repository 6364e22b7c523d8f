package mounttest

import "github.com/podvol/podvol/mount"

// Plain is a mounter that knows no context, with scripted answers.
type Plain struct {
	mount.Interface
	Err     error           // of every call
	Hang    <-chan struct{} // calls wait for it, if it is not nil
	Entered func()          // runs first, if it is not nil
}

func (p Plain) call() error {
	if p.Entered != nil {
		p.Entered()
	}
	if p.Hang != nil {
		<-p.Hang
	}
	return p.Err
}

// MountSensitive implements [mount.Interface].
func (p Plain) MountSensitive(string, string, string, []string, []string) error { return p.call() }

// Unmount implements [mount.Interface].
func (p Plain) Unmount(string) error { return p.call() }

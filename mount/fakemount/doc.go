// Package fakemount is a mount table in memory that behaves as the kernel's does, for
// tests without privilege and for rehearsals. [New] returns its [Mounter].
//
// Its parts: the mounts and what they show (mount.go, super.go, path.go), their effects
// on real directories (content.go, exchange.go), the unmount, by the ladder that the
// host's mounter uses too (unmount.go), and the log of calls, with the faults that are
// injected into them (call.go, fake.go).
package fakemount

// Package mountopt reads options and sources in the words of mount(8).
package mountopt

import (
	"iter"
	"slices"
	"strings"
)

// Options are mount options, split by the part that understands them.
type Options struct {
	// Set and Clear are MS_* flags asked for and asked against.
	Set, Clear uintptr
	// DeepSet and DeepClear are the part of Set and Clear that holds for mounts
	// below too: "ro=recursive".
	DeepSet, DeepClear uintptr
	// ReadOnlyAt is where ro or rw holds: "ro=vfs", "ro=fs".
	ReadOnlyAt Layer
	// Bind, Recursive, Remount: "bind", "rbind" (both), "remount".
	Bind, Recursive, Remount bool
	// Propagation are the MS_* values of propagation changes, in order, each
	// with MS_REC where asked for.
	Propagation []uintptr
	// Data is for the file system, in order.
	Data []string
	// Command are options that only mount(8) can carry out.
	Command []string
}

// Layer is what an option belongs to: a mount, or the file system that it
// shows together with other mounts.
type Layer int

const (
	// BothLayers: nothing was said.
	BothLayers Layer = iota
	MountLayer       // mount(8)'s "vfs"
	SuperLayer       // mount(8)'s "fs"
)

// PerMountFlags are those flags that a bind mount has of its own. The others
// belong to the file system.
const PerMountFlags = msRdonly | msNosuid | msNodev | msNoexec | msNosymfollow | AtimeFlags

// AtimeFlags exclude each other, but for MS_NODIRATIME.
const AtimeFlags = msNoatime | msRelatime | msStrictatime | msNodiratime

// OneAtimeOf are the flags of which a mount has just one.
const OneAtimeOf = msNoatime | msRelatime | msStrictatime

// PerSuperFlags are those flags that a file system has of its own, whatever its
// mounts have.
const PerSuperFlags = msRdonly | msSynchronous | msDirsync | msMandlock | msLazytime | msIVersion

// GenericFlag returns what one of mount(8)'s file-system-independent words
// does to the flags.
func GenericFlag(word string) (set, clear uintptr, ok bool) {
	switch word {
	case "ro":
		return msRdonly, 0, true
	case "rw":
		return 0, msRdonly, true
	case "nosuid":
		return msNosuid, 0, true
	case "suid":
		return 0, msNosuid, true
	case "nodev":
		return msNodev, 0, true
	case "dev":
		return 0, msNodev, true
	case "noexec":
		return msNoexec, 0, true
	case "exec":
		return 0, msNoexec, true
	case "nosymfollow":
		return msNosymfollow, 0, true
	case "symfollow":
		return 0, msNosymfollow, true
	case "sync":
		return msSynchronous, 0, true
	case "async":
		return 0, msSynchronous, true
	case "dirsync":
		return msDirsync, 0, true
	case "mand":
		return msMandlock, 0, true
	case "nomand":
		return 0, msMandlock, true
	case "lazytime":
		return msLazytime, 0, true
	case "nolazytime":
		return 0, msLazytime, true
	case "iversion":
		return msIVersion, 0, true
	case "noiversion":
		return 0, msIVersion, true
	case "silent":
		return msSilent, 0, true
	case "loud":
		return 0, msSilent, true
	}
	return atimeFlag(word)
}

func atimeFlag(word string) (set, clear uintptr, ok bool) {
	switch word {
	case "noatime":
		return msNoatime, OneAtimeOf &^ msNoatime, true
	case "relatime":
		return msRelatime, OneAtimeOf &^ msRelatime, true
	case "strictatime":
		return msStrictatime, OneAtimeOf &^ msStrictatime, true
	case "atime":
		return 0, msNoatime, true
	case "norelatime":
		return 0, msRelatime, true
	case "nostrictatime":
		return 0, msStrictatime, true
	case "nodiratime":
		return msNodiratime, 0, true
	case "diratime":
		return 0, msNodiratime, true
	}
	return 0, 0, false
}

// PropagationFlag returns the MS_* value of a propagation word.
func PropagationFlag(word string) (uintptr, bool) {
	kind, recursive := strings.CutPrefix(word, "r")
	var flag uintptr
	switch kind {
	case "shared":
		flag = msShared
	case "slave":
		flag = msSlave
	case "private":
		flag = msPrivate
	case "unbindable":
		flag = msUnbindable
	default:
		return 0, false
	}
	if recursive {
		flag |= msRec
	}
	return flag, true
}

// isComment tells words that mean something to fstab, systemd or boot scripts
// alone, and nothing to a mount that is made now.
func isComment(word string) bool {
	switch word {
	case "", "defaults", "auto", "noauto", "nofail", "_netdev", "nouser", "nousers", "noowner", "nogroup":
		return true
	}
	return strings.HasPrefix(word, "comment=") || strings.HasPrefix(word, "x-") && !isCommandOption(word)
}

// isCommandOption tells what mount(8) itself carries out.
func isCommandOption(word string) bool {
	name, _, _ := strings.Cut(word, "=")
	switch name {
	case "move", "loop", "offset", "sizelimit", "encryption", "helper", "uhelper", "user", "users", "owner", "group":
		return true
	}
	return strings.HasPrefix(name, "verity.") || strings.HasPrefix(name, "X-") || strings.HasPrefix(name, "x-mount.")
}

// Parse splits options as mount(8) does: elements may themselves be
// comma-separated lists, later words win over earlier ones. It never fails;
// what it does not know is Data.
func Parse(options ...string) Options {
	var p Options
	p.Add(options...)
	return p
}

// Add has p hold what [Parse] makes of its options and these.
func (p *Options) Add(options ...string) {
	for _, list := range options {
		for word := range words(list) {
			p.add(word)
		}
	}
}

func (p *Options) add(word string) {
	if p.addFlag(word) {
		return
	}
	if flag, ok := PropagationFlag(word); ok {
		p.Propagation = append(p.Propagation, flag)
		return
	}
	switch {
	case word == "bind":
		p.Bind = true
	case word == "rbind":
		p.Bind, p.Recursive = true, true
	case word == "remount":
		p.Remount = true
	case isCommandOption(word):
		p.Command = append(p.Command, word)
	case !isComment(word):
		p.Data = append(p.Data, word)
	}
}

// addFlag takes one of the file-system-independent words, with where it holds
// in the syntax of mount(8) 2.39: "nosuid=recursive", "ro=vfs". A word of which
// the same flags are said anew holds no more.
func (p *Options) addFlag(word string) bool {
	name, where, limited := strings.Cut(word, "=")
	set, clear, ok := GenericFlag(name)
	if !ok {
		return false
	}
	recursive, at := false, BothLayers
	if limited {
		if recursive, at, ok = holdsWhere(where); !ok {
			return false
		}
	}
	p.Set = p.Set&^clear | set
	p.Clear = p.Clear&^set | clear
	p.DeepSet &^= set | clear
	p.DeepClear &^= set | clear
	if recursive {
		p.DeepSet |= set
		p.DeepClear |= clear
	}
	if (set|clear)&msRdonly != 0 {
		p.ReadOnlyAt = at
	}
	return true
}

// holdsWhere reads the value of a word: "vfs", "fs", "recursive" or, in quotes,
// several of them.
func holdsWhere(where string) (recursive bool, at Layer, ok bool) {
	vfs, fs := false, false
	for _, w := range strings.Split(strings.Trim(where, `"`), ",") {
		switch w {
		case "recursive":
			recursive = true
		case "vfs":
			vfs = true
		case "fs":
			fs = true
		default:
			return false, BothLayers, false
		}
	}
	switch {
	case vfs && !fs:
		at = MountLayer
	case fs && !vfs:
		at = SuperLayer
	}
	return recursive, at, true
}

// OfMount are the flags asked for and against that belong to the mount.
func (p Options) OfMount() (set, clear uintptr) {
	return p.of(PerMountFlags, SuperLayer)
}

// OfSuper are the flags asked for and against that belong to the file system.
func (p Options) OfSuper() (set, clear uintptr) {
	return p.of(PerSuperFlags, MountLayer)
}

func (p Options) of(flags uintptr, other Layer) (set, clear uintptr) {
	if p.ReadOnlyAt == other {
		flags &^= msRdonly
	}
	return p.Set & flags, p.Clear & flags
}

// ApplyToMount returns the flags of a mount that result from those it has now.
func (p Options) ApplyToMount(current uintptr) uintptr {
	set, clear := p.OfMount()
	return current&^clear | set
}

// ApplyToSuper does the same for the flags of a file system.
func (p Options) ApplyToSuper(current uintptr) uintptr {
	set, clear := p.OfSuper()
	return current&^clear | set
}

// ApplyBelow does the same for the mounts below.
func (p Options) ApplyBelow(current uintptr) uintptr {
	return current&^p.DeepClear&PerMountFlags | p.DeepSet&PerMountFlags
}

// IsDeep: something is asked for that holds for the mounts below as well.
func (p Options) IsDeep() bool { return (p.DeepSet|p.DeepClear)&PerMountFlags != 0 }

// OnlyPropagation: only a change of propagation of the mount at the target is
// asked for. With a source or a type it is a new mount's.
func (p Options) OnlyPropagation(fstype, source, target string) bool {
	return (fstype == "" || fstype == "none") && (source == "" || source == "none" || source == target) &&
		len(p.Propagation) > 0 && !p.Bind && !p.Remount && p.Set == 0 && p.Clear == 0 && len(p.Data) == 0 && len(p.Command) == 0
}

// FlagsShown returns the MS_* flags behind options as a mount table shows
// them. A mount that shows no atime word has strictatime.
func FlagsShown(options []string) uintptr {
	flags := Parse(options...).Set & PerMountFlags
	if flags&OneAtimeOf == 0 {
		flags |= msStrictatime
	}
	return flags
}

// Split splits a comma-separated list as mount(8) does: a comma within
// double quotes or after a backslash does not separate.
func Split(list string) []string { return slices.Collect(words(list)) }

// words is [Split] without making a list.
func words(list string) iter.Seq[string] {
	return func(yield func(string) bool) {
		start, quoted := 0, false
		for i := 0; i < len(list); i++ {
			switch {
			case list[i] == '"':
				quoted = !quoted
			case list[i] == ',' && !quoted && (i == 0 || list[i-1] != '\\'):
				if !yield(list[start:i]) {
					return
				}
				start = i + 1
			}
		}
		yield(list[start:])
	}
}

// NoCanonicalize is the flag that keeps mount(8) from looking up by name what a
// descriptor leads to: the name may lead elsewhere by then.
const NoCanonicalize = "--no-canonicalize"

// IsDescriptor reports whether a path is a link of /proc that stands for a
// descriptor of a process: /proc/<pid>/fd/<number>.
func IsDescriptor(p string) bool {
	parts := strings.Split(p, "/")
	return len(parts) == 5 && parts[0] == "" && parts[1] == "proc" && parts[3] == "fd"
}

// These are the MS_* flags of mount(2), which are part of Linux' interface and never change.
// They have their own names here, since package unix has them on Linux alone and options
// are read on every system.
const (
	msRdonly      uintptr = 0x1
	msNosuid      uintptr = 0x2
	msNodev       uintptr = 0x4
	msNoexec      uintptr = 0x8
	msSynchronous uintptr = 0x10
	msMandlock    uintptr = 0x40
	msDirsync     uintptr = 0x80
	msNosymfollow uintptr = 0x100
	msNoatime     uintptr = 0x400
	msNodiratime  uintptr = 0x800
	msRec         uintptr = 0x4000
	msSilent      uintptr = 0x8000
	msUnbindable  uintptr = 0x20000
	msPrivate     uintptr = 0x40000
	msSlave       uintptr = 0x80000
	msShared      uintptr = 0x100000
	msRelatime    uintptr = 0x200000
	msIVersion    uintptr = 0x800000
	msStrictatime uintptr = 0x1000000
	msLazytime    uintptr = 0x2000000
)

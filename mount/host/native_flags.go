package host

import "golang.org/x/sys/unix"

// attributesOf translates the flags of a new mount into MOUNT_ATTR_*.
func attributesOf(flags uintptr) uint64 {
	var attributes uint64
	for _, a := range attributeNames() {
		if flags&a.flag != 0 {
			attributes |= a.attribute
		}
	}
	switch { // relatime, the default, is 0
	case flags&unix.MS_NOATIME != 0:
		attributes |= unix.MOUNT_ATTR_NOATIME
	case flags&unix.MS_STRICTATIME != 0:
		attributes |= unix.MOUNT_ATTR_STRICTATIME
	}
	return attributes
}

// attributeName is a flag that is an attribute of its own.
type attributeName struct {
	flag      uintptr
	attribute uint64
	// on and off are its words.
	on, off string
}

// attributeNames are all but the atime ones, which exclude each other.
func attributeNames() []attributeName {
	return []attributeName{
		{unix.MS_RDONLY, unix.MOUNT_ATTR_RDONLY, "ro", "rw"},
		{unix.MS_NOSUID, unix.MOUNT_ATTR_NOSUID, "nosuid", "suid"},
		{unix.MS_NODEV, unix.MOUNT_ATTR_NODEV, "nodev", "dev"},
		{unix.MS_NOEXEC, unix.MOUNT_ATTR_NOEXEC, "noexec", "exec"},
		{unix.MS_NOSYMFOLLOW, unix.MOUNT_ATTR_NOSYMFOLLOW, "nosymfollow", "symfollow"},
		{unix.MS_NODIRATIME, unix.MOUNT_ATTR_NODIRATIME, "nodiratime", "diratime"},
	}
}

// superWords are the words by which fsconfig knows the flags of a file system.
func superWords(set uintptr) []string {
	var words []string
	for _, s := range superNames() {
		if set&s.flag != 0 {
			words = append(words, s.on)
		}
	}
	return words
}

// superOffWords are the words that take such flags back.
func superOffWords(clear uintptr) []string {
	var words []string
	for _, s := range superNames() {
		if clear&s.flag != 0 && s.off != "" {
			words = append(words, s.off)
		}
	}
	return words
}

// superName is a flag of a file system and its words. That it exists on its own
// is the VFS's doing: no file system need know them.
type superName struct {
	flag    uintptr
	on, off string
}

func superNames() []superName {
	return []superName{
		{unix.MS_RDONLY, "ro", "rw"},
		{unix.MS_SYNCHRONOUS, "sync", "async"},
		{unix.MS_DIRSYNC, "dirsync", ""},
		{unix.MS_MANDLOCK, "mand", "nomand"},
		{unix.MS_LAZYTIME, "lazytime", "nolazytime"},
	}
}

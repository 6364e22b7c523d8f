package hostfiles

import "io/fs"

// Kind names what a file is, for people: "directory", "socket".
func Kind(mode fs.FileMode) string {
	switch mode.Type() {
	case 0:
		return "regular file"
	case fs.ModeDir:
		return "directory"
	case fs.ModeSocket:
		return "socket"
	case fs.ModeNamedPipe:
		return "named pipe"
	case fs.ModeDevice:
		return "block device"
	case fs.ModeDevice | fs.ModeCharDevice:
		return "character device"
	case fs.ModeSymlink:
		return "symbolic link"
	}
	return "special file"
}

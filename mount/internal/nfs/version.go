package nfs

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is a version of the protocol; Minor is 0 for NFSv3.
type Version struct{ Major, Minor int }

// String is the version as the kernel's option vers= takes it: "3", "4.2".
func (v Version) String() string {
	if v.Major < 4 {
		return strconv.Itoa(v.Major)
	}
	return fmt.Sprintf("%d.%d", v.Major, v.Minor)
}

// newest returns the versions of NFSv4 from the newest down.
func newest() []Version { return []Version{{4, 2}, {4, 1}, {4, 0}} }

// wish is which versions the options ask for.
type wish struct {
	major, minor int // of the last vers= or the like; absent where not given
	extra        int // of minorversion=
	asked        string
	option       string // the word that asked, for errors
}

// absent stands for a number that was not given.
const absent = -1

// parse reads the value of vers= or nfsvers=, or the part after "v" in v4.1.
func (w *wish) parse(option, value string) (err error) {
	w.option, w.asked, w.minor = option, value, absent
	majorText, minorText, hasMinor := strings.Cut(value, ".")
	if w.major, err = parseNumber(option, majorText); err != nil || !hasMinor {
		return err
	}
	w.minor, err = parseNumber(option, minorText)
	return err
}

func (w *wish) parseMinor(option, value string) (err error) {
	w.option = option
	w.extra, err = parseNumber(option, value)
	return err
}

// parseNumber takes a decimal number as it is written without more.
func parseNumber(option, text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || text != strconv.FormatUint(n, 10) {
		return 0, &OptionError{option, "it is no version of NFS"}
	}
	return int(n), nil
}

// versions are those to try, in order.
func (w wish) versions() ([]Version, error) {
	minor := w.minor
	if w.extra != absent {
		minor = w.extra
	}
	switch {
	case minor != absent && w.major != 4 && w.major != absent:
		return nil, &OptionError{w.option, "only NFSv4 has minor versions"}
	case minor > 2:
		return nil, &VersionError{Asked: w.asked, Err: fmt.Errorf("NFSv4.%d is not known here", minor)}
	case minor != absent:
		return []Version{{4, minor}}, nil // minorversion= alone can only mean NFSv4
	case w.major == absent:
		return append(newest(), Version{Major: 3}), nil
	case w.major == 4:
		return newest(), nil
	case w.major == 3:
		return []Version{{Major: 3}}, nil
	}
	return nil, &VersionError{Asked: w.asked, Err: fmt.Errorf("NFSv%d is not mounted; 3 and 4 are", w.major)}
}

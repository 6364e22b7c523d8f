package emptydirs

import (
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount"
)

// MediumOf returns the medium of a directory with this mount on it; the
// default one where the file system is none of the media's.
func MediumOf(entry mount.Entry) v1.StorageMedium {
	switch entry.FSType {
	case FSTypeMemory:
		return v1.StorageMediumMemory
	case FSTypeHugePages:
		if size, ok := byteOption(entry, "pagesize"); ok {
			return v1.StorageMediumHugePagesPrefix + v1.StorageMedium(resource.NewQuantity(size, resource.BinarySI).String())
		}
		return v1.StorageMediumHugePages
	}
	return v1.StorageMediumDefault
}

// byteOption reads an option such as "size=1024k" of an entry, in bytes.
func byteOption(entry mount.Entry, name string) (int64, bool) {
	for _, options := range [][]string{entry.SuperOptions, entry.Options} {
		for _, o := range options {
			if value, ok := strings.CutPrefix(o, name+"="); ok {
				return parseBytes(value)
			}
		}
	}
	return 0, false
}

// parseBytes reads a number as the kernel prints and takes it: with k, m or g
// as multiples of 1024.
func parseBytes(s string) (int64, bool) {
	shift := 0
	digits := strings.TrimRight(s, "kKmMgG")
	switch strings.ToLower(s[len(digits):]) {
	case "":
	case "k":
		shift = 10
	case "m":
		shift = 20
	case "g":
		shift = 30
	default:
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > (1<<63-1)>>shift {
		return 0, false
	}
	return n << shift, true
}

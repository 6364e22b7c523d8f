package kubeapi

import (
	"cmp"
	"fmt"
	"strings"
)

// CompareResourceVersion returns -1, 0 or 1 where a is older than, the same as or
// newer than b, two resource versions of one kind. Anything but a positive
// decimal number without leading zeros is an error. It is as apimachinery's
// function of that name, which 0.34 lacks.
func CompareResourceVersion(a, b string) (int, error) {
	for _, version := range []string{a, b} {
		if strings.Trim(version, "0123456789") != "" || version == "" || version[0] == '0' {
			return 0, fmt.Errorf("resource version %q is not a positive number", version)
		}
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)), nil
}

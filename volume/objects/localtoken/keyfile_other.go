//go:build !unix

package localtoken

import (
	"errors"
	"fmt"
	"runtime"
)

// readKeyFile always fails: the permissions that it would check are of a Unix.
func readKeyFile(path string) ([]byte, error) {
	return nil, refusedKeyFile(path, "cannot be used", "", fmt.Errorf("an Issuer needs a Unix, and this is %s: %w", runtime.GOOS, errors.ErrUnsupported))
}

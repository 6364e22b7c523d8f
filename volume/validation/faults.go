package validation

import (
	"errors"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podvol/podvol/volume"
)

// faults collects the faults of one object. Its methods are the rules that many
// fields share.
type faults struct {
	list []error
	// pod and volume are the owners of the checked field.
	pod    types.NamespacedName
	volume string
}

func (c *faults) err() error { return errors.Join(c.list...) }

func (c *faults) refuse(field, format string, args ...any) {
	c.add(volume.Invalid(field, format, args...))
}

// add adds the fault that another function has found, or nil.
func (c *faults) add(err error) {
	if err == nil {
		return
	}
	if invalid, ok := errors.AsType[*volume.InvalidSpecError](err); ok {
		invalid.Pod, invalid.Volume = c.pod, c.volume
	}
	c.list = append(c.list, err)
}

// addAll adds the faults that apimachinery has found.
func (c *faults) addAll(found field.ErrorList) {
	for _, fault := range found {
		c.refuse(fault.Field, "%s", fault.ErrorBody())
	}
}

func (c *faults) segment(field, s string) {
	c.add(volume.CheckPathSegment(field, s))
}

// names checks a name by one of apimachinery's functions.
func (c *faults) names(field, name string, check func(string) []string) {
	if name == "" {
		c.refuse(field, "must not be empty; name it")
		return
	}
	if wrong := check(name); len(wrong) > 0 {
		c.refuse(field, "%q is no valid name: %s", name, strings.Join(wrong, "; "))
	}
}

func (c *faults) required(field, s string) {
	if s == "" {
		c.refuse(field, "must not be empty; set it")
	}
}

// oneOf refuses a word that the API does not know.
func oneOf[S ~string](c *faults, field string, word S, known ...S) {
	if !slices.Contains(known, word) {
		c.refuse(field, "%q is not one of %q; use one of them", word, known)
	}
}

// between refuses a number outside the bounds. Both bounds are allowed.
func (c *faults) between(field string, n, least, most int64) {
	if n < least || n > most {
		c.refuse(field, "must be between %d and %d, is %d", least, most, n)
	}
}

// localPath refuses a path that could lead out of its directory. Empty is
// allowed.
func (c *faults) localPath(field, p string) {
	if path.IsAbs(p) {
		c.refuse(field, "%q must be a relative path", p)
	}
	c.noBacksteps(field, p)
}

func (c *faults) noBacksteps(field, p string) {
	c.add(checkNoBacksteps(field, p))
}

func (c *faults) absolutePath(field, p string) {
	c.add(CheckAbsolutePath(field, p))
}

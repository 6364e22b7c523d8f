package containerenv

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/downward"
	v1 "k8s.io/api/core/v1"
)

// Environment is a container's environment. It may hold secrets; printing it
// shows names only.
type Environment struct {
	// Skipped are keys of config maps and secrets that were asked for by
	// envFrom and cannot be a variable's name.
	Skipped []Skipped

	names  []string // in the order in which they were first set
	values map[string]string
}

// Skipped is an object with keys that cannot be names of variables.
type Skipped struct {
	Ref volume.ObjectRef
	// Names are the keys, each with envFrom's prefix, in order.
	Names []string
}

func (s Skipped) String() string {
	return fmt.Sprintf("%s: left out, since they cannot be names of environment variables: %q", s.Ref, s.Names)
}

// Names returns the variables' names in the order in which they were first
// set.
func (e *Environment) Names() []string { return slices.Clone(e.names) }

// Map returns a copy of the environment.
func (e *Environment) Map() map[string]string { return maps.Clone(e.values) }

// Lookup returns a variable's value, and whether it is set.
func (e *Environment) Lookup(name string) (value string, ok bool) {
	value, ok = e.values[name]
	return value, ok
}

// List returns the environment as NAME=value, as os/exec takes it.
func (e *Environment) List() []string {
	list := make([]string, len(e.names))
	for i, name := range e.names {
		list[i] = name + "=" + e.values[name]
	}
	return list
}

// EnvVars returns the environment as an API object has it, without references.
func (e *Environment) EnvVars() []v1.EnvVar {
	list := make([]v1.EnvVar, len(e.names))
	for i, name := range e.names {
		list[i] = v1.EnvVar{Name: name, Value: e.values[name]}
	}
	return list
}

// Expand expands the words of a container's command or args. A reference to a
// variable that is not set stays as it is.
func (e *Environment) Expand(words []string) []string {
	expanded := make([]string, len(words))
	for i, word := range words {
		expanded[i], _ = downward.Expand(word, e.Lookup)
	}
	return expanded
}

// String returns the names alone.
func (e Environment) String() string { return "[" + strings.Join(e.names, " ") + "]" }

// GoString returns the names alone, for %#v.
func (e Environment) GoString() string { return e.String() }

func (e *Environment) set(name, value string) {
	if _, there := e.values[name]; !there {
		e.names = append(e.names, name)
	}
	e.values[name] = value
}

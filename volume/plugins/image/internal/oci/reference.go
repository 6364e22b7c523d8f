// Package oci names images, and reads their manifests from a registry or from a
// directory (an OCI layout). Everything that is read is checked against its digest.
package oci

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
)

// Reference is a complete name of an image. Of Tag and Digest at least one is set.
type Reference struct {
	// Domain is the registry, with its port if it has one: "docker.io".
	Domain string
	// Path is the repository there: "library/busybox".
	Path string
	Tag  string
	// Digest is "sha256:" and 64 digits; the tag does not count beside it.
	Digest string
}

const (
	dockerHub = "docker.io"
	maxName   = 255
)

// The forms of a name's parts.
const (
	component  = `[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`
	label      = `[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?`
	pathForm   = `^` + component + `(?:/` + component + `)*$`
	domainForm = `^(?:` + label + `(?:\.` + label + `)*|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?$`
	tagForm    = `^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`
)

// Parse completes a name as Docker and Kubernetes do: without a registry it is one of
// docker.io, and without tag and digest the tag is latest.
func Parse(name string) (Reference, error) {
	var r Reference
	rest, digest, hasDigest := strings.Cut(name, "@")
	if hasDigest && !IsDigest(digest) {
		return r, fmt.Errorf("%q is no digest of the form sha256:<64 hexadecimal digits>", digest)
	}
	r.Digest = digest
	if colon := strings.LastIndexByte(rest, ':'); colon > strings.LastIndexByte(rest, '/') {
		rest, r.Tag = rest[:colon], rest[colon+1:]
		if !matches(tagForm, r.Tag) {
			return r, fmt.Errorf("%q is no tag", r.Tag)
		}
	}
	r.Domain, r.Path = split(rest)
	switch {
	case !matches(domainForm, r.Domain):
		return r, fmt.Errorf("%q is no name of a registry", r.Domain)
	case !matches(pathForm, r.Path):
		return r, fmt.Errorf("%q is no name of a repository, which has lower-case letters, digits, and between them . _ - /", r.Path)
	case len(r.Name()) > maxName:
		return r, fmt.Errorf("the name has %d bytes, at most %d are allowed", len(r.Name()), maxName)
	}
	if r.Tag == "" && r.Digest == "" {
		r.Tag = "latest"
	}
	return r, nil
}

func split(name string) (domain, path string) {
	first, rest, several := strings.Cut(name, "/")
	if !several || !strings.ContainsAny(first, ".:") && first != "localhost" {
		first, rest = dockerHub, name
	}
	if first == "index.docker.io" {
		first = dockerHub
	}
	if first == dockerHub && !strings.Contains(rest, "/") {
		rest = "library/" + rest
	}
	return first, rest
}

// IsDigest reports whether s has the form of a digest. Other algorithms than SHA-256 are
// not known.
func IsDigest(s string) bool {
	digits, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(digits) == sha256.Size*2 && strings.Trim(digits, "0123456789abcdef") == ""
}

func matches(form, s string) bool { return regexp.MustCompile(form).MatchString(s) }

// Hex returns the digits of a digest.
func Hex(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// Name is the repository with its registry.
func (r Reference) Name() string { return r.Domain + "/" + r.Path }

// String is the complete name.
func (r Reference) String() string {
	s := r.Name()
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

// At is the same repository's image of this digest.
func (r Reference) At(digest string) Reference {
	r.Tag, r.Digest = "", digest
	return r
}

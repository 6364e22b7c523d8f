package nfs

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v2"
)

// maxPolicy bounds a policy's file, in bytes.
const maxPolicy = 1 << 20

// ParsePolicy reads a policy from YAML, or JSON, which is a part of it:
//
//	servers:
//	- server: "*.storage.example.org"
//	  allow: [vers=4.1, vers=4.2, nconnect, hard, soft, timeo, retrans]
//	  defaults: [nosuid, nodev]
//	  makeBelow: [/export/pods]
//
// The fields are those of [InlinePolicy] and [ServerPolicy]. Unknown and
// repeated fields are refused with their line, as what is no YAML is, and faults
// of the values by [ErrBadPolicy]. The text of an error holds no more of the
// file than field names and the faulty values.
func ParsePolicy(r io.Reader) (InlinePolicy, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxPolicy+1))
	if err != nil {
		return InlinePolicy{}, err
	}
	if len(text) > maxPolicy {
		return InlinePolicy{}, fmt.Errorf("NFS policy: it is larger than %d bytes", maxPolicy)
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.SetStrict(true)
	var policy InlinePolicy
	switch err := decoder.Decode(&policy); {
	case errors.Is(err, io.EOF):
		return InlinePolicy{}, errors.New("NFS policy: it is empty; write servers: [] to allow nothing")
	case err != nil:
		return InlinePolicy{}, fmt.Errorf("NFS policy: %s", plainYAML(err))
	}
	if err := decoder.Decode(new(InlinePolicy)); !errors.Is(err, io.EOF) {
		return InlinePolicy{}, errors.New("NFS policy: there is more than one document, of which only one would count")
	}
	return policy, policy.Check()
}

// plainYAML takes the names of Go's types out of what the decoder says.
func plainYAML(err error) string {
	names := strings.NewReplacer(
		"unmarshal errors:\n  ", "",
		" in type nfs.InlinePolicy", "", " in type nfs.ServerPolicy", " in a server's entry",
		"into nfs.InlinePolicy", "into a policy", "into nfs.ServerPolicy", "into a server's entry",
		"into []nfs.ServerPolicy", "into a list of servers", "into []string", "into a list of words",
	)
	return names.Replace(strings.TrimPrefix(err.Error(), "yaml: "))
}

package format

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Exit statuses of blkid(8). One is busybox's, which cannot probe.
const (
	blkidNothing   = 2
	blkidAmbiguous = 8
	blkidBusybox   = 1
)

// askBlkid asks blkid(8) for the content of a device. Where it is not installed, or
// cannot probe, it knows nothing; any other failure is an error. It takes a
// device that it cannot read for blank, so its word alone is not enough.
func (f *Formatter) askBlkid(ctx context.Context, device string) ([]Signature, error) {
	path, err := f.find("blkid")
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	blkid := command{path: path, args: []string{"-p", "-o", "export", device}}
	output, err := blkid.query(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	switch exitStatus(err) {
	case 0:
		return parseBlkid(output), nil
	case blkidNothing, blkidBusybox:
		return nil, nil
	case blkidAmbiguous:
		return []Signature{{"more than one", Remains, -1}}, nil
	}
	return nil, fmt.Errorf("%s: %w", blkid.String(), err)
}

// parseBlkid reads NAME=value lines.
func parseBlkid(output string) []Signature {
	values := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(output))
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok {
			values[name] = value
		}
	}
	var found []Signature
	if fstype := values["TYPE"]; fstype != "" {
		kind := Member
		if values["USAGE"] == "filesystem" {
			kind = Filesystem
		}
		found = append(found, Signature{fstype, kind, -1})
	}
	if table := values["PTTYPE"]; table != "" {
		found = append(found, Signature{table, PartitionTable, -1})
	}
	return found
}

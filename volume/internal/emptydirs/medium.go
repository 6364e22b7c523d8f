package emptydirs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/validation"
)

const (
	// FSTypeMemory and FSTypeHugePages are the file systems of the media.
	FSTypeMemory    = "tmpfs"
	FSTypeHugePages = "hugetlbfs"
	// noSwap keeps a tmpfs out of swap. Linux has it since 6.4, and never for
	// a tmpfs that belongs to a user namespace.
	noSwap = "noswap"
)

// request returns the mount that a medium needs. The medium must not be the
// default one.
func (o Options) request(dir string) (mount.Request, error) {
	request := mount.Request{Target: dir, Options: []string{fmt.Sprintf("mode=%04o", o.Mode.Perm())}}
	if o.SizeBytes > 0 {
		request.Options = append(request.Options, sizeOption(o.SizeBytes))
	}
	if o.Medium == v1.StorageMediumMemory {
		request.Source, request.FSType = FSTypeMemory, FSTypeMemory
		request.Options = append(request.Options, noSwap)
		return request, nil
	}
	pageSize, err := validation.HugePageSize("emptyDir.medium", o.Medium)
	if err != nil {
		return mount.Request{}, err
	}
	if o.SizeBytes > 0 && o.SizeBytes < pageSize {
		return mount.Request{}, volume.Invalid("emptyDir.sizeLimit",
			"%d bytes are less than one page of medium %s; ask for a multiple of the page size", o.SizeBytes, o.Medium)
	}
	request.Source, request.FSType = FSTypeHugePages, FSTypeHugePages
	request.Options = append(request.Options, "pagesize="+strconv.FormatInt(pageSize, 10))
	return request, nil
}

func sizeOption(bytes int64) string { return "size=" + strconv.FormatInt(bytes, 10) }

// mountMedium mounts the request, without noswap where the kernel refuses it:
// only trying tells.
func mountMedium(ctx context.Context, m mount.Interface, request mount.Request, same func(mount.Entry) bool) error {
	_, err := podmount.SetUp(ctx, m, request, same)
	if !slices.Contains(request.Options, noSwap) || !refusedOption(err) {
		return err
	}
	request.Options = slices.DeleteFunc(slices.Clone(request.Options), func(o string) bool { return o == noSwap })
	_, err = podmount.SetUp(ctx, m, request, same)
	return err
}

func refusedOption(err error) bool {
	return !volume.IsUncertain(err) && (errors.Is(err, unix.EINVAL) || errors.Is(err, mount.ErrBadOption))
}

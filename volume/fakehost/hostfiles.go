package fakehost

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fsgroup"
)

// hostFilesRole is the process's own file system, under faults.
type hostFilesRole struct{ host *Host }

func (r hostFilesRole) Stat(ctx context.Context, path string) (fs.FileInfo, error) {
	return answer(ctx, r.host, RoleCall{Method: "Stat", Name: path}, func() (fs.FileInfo, error) { return os.Stat(path) })
}

func (r hostFilesRole) MakeDir(ctx context.Context, path string, perm fs.FileMode) error {
	return r.host.faults.Do(ctx, RoleCall{Method: "MakeDir", Name: path}, func() error {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return nil // its mode is kept
		}
		// The mask of the process may take bits away.
		return errors.Join(os.MkdirAll(path, perm), os.Chmod(path, perm))
	})
}

func (r hostFilesRole) MakeFile(ctx context.Context, path string, perm fs.FileMode) error {
	return r.host.faults.Do(ctx, RoleCall{Method: "MakeFile", Name: path}, func() error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
		if err != nil {
			return err
		}
		return errors.Join(f.Chmod(perm), f.Close())
	})
}

func (r hostFilesRole) SetOwnership(ctx context.Context, path string, attributes volume.Attributes, args volume.MounterArgs) error {
	return r.host.faults.Do(ctx, RoleCall{Method: "SetOwnership", Name: path}, func() error {
		return fsgroup.Set(ctx, path, attributes, args)
	})
}

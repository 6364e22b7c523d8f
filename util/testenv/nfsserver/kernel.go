package nfsserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelServer is nfsd with mountd beside it. Each network namespace has an
// nfsd of its own (nfsd(7)).
type kernelServer struct{ s *Server }

func (k *kernelServer) prepare(ctx context.Context) error {
	err := k.s.at.do(func() error {
		if err := os.WriteFile("/etc/nfs.conf", []byte("[exports]\nrootdir="+k.s.root+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount("nfsd", "/proc/fs/nfsd", "nfsd", 0, ""); err != nil {
			return fmt.Errorf("mount nfsd: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if k.s.at.calls == nil { // elsewhere it goes with its namespace
		k.s.t.Cleanup(func() {
			if err := unix.Unmount("/proc/fs/nfsd", 0); err != nil {
				k.s.t.Errorf("unmount nfsd: %v", err)
			}
		})
	}
	if err := k.export(ctx); err != nil {
		return err
	}
	if err := k.remember(); err != nil {
		return err
	}
	if _, err := startDaemon(k.s.t, k.s.at, k.s.packages, listens(20048), "rpc.mountd", "-F", "-p", "20048"); err != nil {
		return err
	}
	return k.s.at.do(func() error {
		for _, file := range []string{"nfsv4leasetime", "nfsv4gracetime"} {
			if err := set(file, "10"); err != nil {
				return err
			}
		}
		return nil
	})
}

// remember starts what keeps book of clients in namespaces: the kernel does so
// by itself in the first one only, and else lets no grace period be ended.
func (k *kernelServer) remember() error {
	if k.s.wire == nil {
		return nil
	}
	const pipes, books = "/run/rpc_pipefs", "/var/lib/nfs/nfsdcld"
	err := k.s.at.do(func() error {
		for _, dir := range []string{pipes, books} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
		}
		return unix.Mount("rpc_pipefs", pipes, "rpc_pipefs", 0, "")
	})
	if err != nil {
		return fmt.Errorf("mount rpc_pipefs: %w", err)
	}
	_, err = startDaemon(k.s.t, k.s.at, k.s.packages, nil, "nfsdcld", "-F", "-p", pipes, "-s", books)
	return err
}

func (k *kernelServer) export(ctx context.Context) error {
	var lines strings.Builder
	for _, e := range k.s.config.Exports {
		lines.WriteString(k.line(e, k.s.exportID(e.Path)))
	}
	err := k.s.at.do(func() error { return os.WriteFile("/etc/exports", []byte(lines.String()), 0o644) })
	if err != nil {
		return err
	}
	if err := runTool(ctx, k.s.at, k.s.packages, "exportfs", "-ra"); err != nil {
		return err
	}
	return runTool(ctx, k.s.at, k.s.packages, "exportfs", "-f") // what the kernel has been told is no longer so
}

// line is an export's line of exports(5). The fsid is what file handles begin
// with.
func (k *kernelServer) line(e Export, fsid int) string {
	client := "*"
	if e.Denied {
		client = "192.0.2.1"
	}
	options := []string{"rw", "insecure", "no_subtree_check", "no_root_squash", "fsid=" + strconv.Itoa(fsid)}
	if e.ReadOnly {
		options[0] = "ro"
	}
	if e.RootSquash {
		options[3] = "root_squash"
	}
	if e.Security != nil {
		options = append(options, "sec="+strings.Join(e.Security, ":"))
	}
	return fmt.Sprintf("%s %s(%s)\n", e.Path, client, strings.Join(options, ","))
}

func (k *kernelServer) start(context.Context) error {
	return k.s.at.do(func() error {
		if err := set("versions", k.versions()); err != nil {
			return err
		}
		if err := listen(unix.AF_INET, &unix.SockaddrInet4{Port: 2049}); err != nil {
			return err
		}
		if err := listen(unix.AF_INET6, &unix.SockaddrInet6{Port: 2049}); err != nil {
			return err
		}
		if err := set("threads", "2"); err != nil {
			return err
		}
		if err := set("v4_end_grace", "Y"); !errors.Is(err, unix.EBUSY) {
			return err
		}
		return nil // no grace period was to be ended
	})
}

func (k *kernelServer) versions() string {
	words := []string{"-4"}
	if slices.ContainsFunc(k.s.config.Versions, func(v string) bool { return v[0] == '4' }) {
		words[0] = "+4"
	}
	for _, v := range AllVersions() {
		switch {
		case slices.Contains(k.s.config.Versions, v):
			words = append(words, "+"+v)
		case v == "3" || words[0] == "+4":
			words = append(words, "-"+v)
		}
	}
	return strings.Join(words, " ")
}

func (k *kernelServer) stop() error { return k.s.at.do(func() error { return set("threads", "0") }) }

// set writes a file of nfsd(7).
func set(file, value string) error {
	if err := os.WriteFile(filepath.Join("/proc/fs/nfsd", file), []byte(value+"\n"), 0); err != nil {
		return fmt.Errorf("nfsd %s %q: %w", file, value, err)
	}
	return nil
}

// listen gives nfsd a socket, as rpc.nfsd does: only those it is given so does
// it tell rpcbind of.
func listen(family int, address unix.Sockaddr) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return err
		}
	}
	if err := unix.Bind(fd, address); err != nil {
		return err
	}
	if err := unix.Listen(fd, 64); err != nil {
		return err
	}
	return set("portlist", strconv.Itoa(fd))
}

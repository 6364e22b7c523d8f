package nfsserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ganesha is nfs-ganesha: one process for everything, whose FSAL VFS serves a
// file system through file handles of the kernel's (open_by_handle_at(2)).
type ganesha struct {
	s       *Server
	process *daemon
}

const ganeshaConfig = "/etc/ganesha.conf"

func (g *ganesha) prepare(context.Context) error {
	return g.s.at.do(func() error {
		for _, dir := range []string{"/var/lib/nfs/ganesha", "/run/ganesha"} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		// It looks there for the file systems that it may serve.
		if err := os.Remove("/etc/mtab"); err != nil && !os.IsNotExist(err) {
			return err
		}
		return os.Symlink("/proc/self/mounts", "/etc/mtab")
	})
}

// export writes the configuration, which a running process reads again.
func (g *ganesha) export(context.Context) error {
	err := g.s.at.do(func() error { return os.WriteFile(ganeshaConfig, []byte(g.configuration()), 0o644) })
	if err != nil || !g.s.running {
		return err
	}
	return g.process.reload("Reread exports complete")
}

func (g *ganesha) configuration() string {
	protocols, minors := []string{}, []string{}
	for _, v := range g.s.config.Versions {
		major, minor, _ := strings.Cut(v, ".")
		if !slices.Contains(protocols, major) {
			protocols = append(protocols, major)
		}
		if minor != "" {
			minors = append(minors, minor)
		}
	}
	var c strings.Builder
	fmt.Fprintf(&c, "NFS_CORE_PARAM {\n Protocols = %s; MNT_Port = 20048; Enable_RQUOTA = false; Mount_Path_Pseudo = true;\n Plugins_Dir = %q;\n}\n",
		strings.Join(protocols, ","), filepath.Join(g.s.packages.Dir, "usr/lib/x86_64-linux-gnu/ganesha"))
	c.WriteString("NFSv4 {\n UseGetpwnam = true; Only_Numeric_Owners = true; Graceless = true; Lease_Lifetime = 10; RecoveryBackend = fs;\n")
	if len(minors) > 0 {
		fmt.Fprintf(&c, " Minor_Versions = %s;\n", strings.Join(minors, ","))
	}
	c.WriteString("}\n")
	for _, e := range g.s.config.Exports {
		c.WriteString(g.block(e, g.s.exportID(e.Path)))
	}
	return c.String()
}

// block is an export's block of ganesha-export-config(8). The number is what
// file handles begin with.
func (g *ganesha) block(e Export, id int) string {
	access, squash, security, client := "RW", "no_root_squash", "sys", ""
	if e.ReadOnly {
		access = "RO"
	}
	if e.RootSquash {
		squash = "root_squash"
	}
	if e.Security != nil {
		security = strings.Join(e.Security, ",")
	}
	if e.Denied {
		client = fmt.Sprintf(" CLIENT { Clients = 192.0.2.1; Access_Type = %s; }\n", access)
		access = "None"
	}
	return fmt.Sprintf("EXPORT {\n Export_Id = %d; Filesystem_Id = %d.%d; Path = %q; Pseudo = %q;\n Access_Type = %s; Squash = %s; SecType = %s;\n FSAL { Name = VFS; }\n%s}\n",
		id, id, id, g.s.Path(e.Path), e.Path, access, squash, security, client)
}

func (g *ganesha) start(context.Context) (err error) {
	g.process, err = startDaemon(g.s.t, g.s.at, g.s.packages, says("NFS SERVER INITIALIZED"), "ganesha.nfsd", "-F", "-f", ganeshaConfig, "-L", "/dev/stdout", "-p", "/run/ganesha/pid", "-N", "NIV_EVENT")
	return err
}

func (g *ganesha) stop() error {
	g.process.stop()
	return nil
}

// Package ownplugins makes the plugins that podvol's commands have beside the stock ones, or
// in place of them, by their flags: NFS under a policy, images, and the drivers of CSI and
// FlexVolume.
package ownplugins

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/csitranslation"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/plugins/csi/controller"
	"github.com/podvol/podvol/volume/plugins/flexvolume"
	"github.com/podvol/podvol/volume/plugins/glusterfs"
	"github.com/podvol/podvol/volume/plugins/image"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// Usage makes an error of the command line.
type Usage func(format string, args ...any) error

// Options are the flags. The zero value asks for nothing.
type Options struct {
	// NFSPolicy is the file of a policy; empty: none.
	NFSPolicy   string
	layouts     []string
	credentials string
	plainHTTP   []string
	drivers     []string
	registryDir string
	flexvolume  flexvolume.Config
	usage       Usage
}

// Add adds --nfs-policy, the flags of images and those of AddDrivers.
func (o *Options) Add(flags *pflag.FlagSet, usage Usage) {
	flags.StringVar(&o.NFSPolicy, "nfs-policy", "", "YAML `FILE` that says which mount options and directories pods may ask NFS servers for (default: none)")
	flags.StringArrayVar(&o.layouts, "image-layout", nil, "`DIR` with an OCI image layout, whose images volumes can have without a registry (repeatable)")
	flags.StringVar(&o.credentials, "registry-config", "", "`FILE` with credentials for registries, such as ~/.docker/config.json (default: the pods' own secrets alone)")
	flags.StringArrayVar(&o.plainHTTP, "insecure-registry", nil, "`HOST` or HOST:PORT of a registry that is reached without TLS (repeatable)")
	o.AddDrivers(flags, usage)
}

// AddDrivers adds --csi-driver and --csi-registry, --flexvolume-dir and --flexvolume-secrets.
func (o *Options) AddDrivers(flags *pflag.FlagSet, usage Usage) {
	o.usage = usage
	flags.StringArrayVar(&o.drivers, "csi-driver", nil, "`SOCKET` or NAME=SOCKET of a CSI driver on this machine, which is asked for a name that is not given (repeatable)")
	flags.StringVar(&o.registryDir, "csi-registry", "", "directory in which CSI drivers register themselves, as in a kubelet's plugins_registry")
	flags.StringVar(&o.flexvolume.Dir, "flexvolume-dir", "", "`DIR` with the programs of FlexVolume drivers (default: "+flexvolume.DefaultDir+")")
	flags.BoolVar(&o.flexvolume.SecretArguments, "flexvolume-secrets", false, "let FlexVolume drivers have secrets, as arguments that every user of this machine can read")
}

// Args are the flags again, with the names of drivers that were asked for them.
func (o *Options) Args() (args []string) {
	if o.NFSPolicy != "" {
		args = append(args, "--nfs-policy", o.NFSPolicy)
	}
	for _, dir := range o.layouts {
		args = append(args, "--image-layout", dir)
	}
	if o.credentials != "" {
		args = append(args, "--registry-config", o.credentials)
	}
	for _, host := range o.plainHTTP {
		args = append(args, "--insecure-registry", host)
	}
	return append(args, o.DriverArgs()...)
}

// DriverArgs are the flags of AddDrivers again.
func (o *Options) DriverArgs() (args []string) {
	for _, d := range o.drivers {
		args = append(args, "--csi-driver", d)
	}
	if o.registryDir != "" {
		args = append(args, "--csi-registry", o.registryDir)
	}
	if o.flexvolume.Dir != "" {
		args = append(args, "--flexvolume-dir", o.flexvolume.Dir)
	}
	if o.flexvolume.SecretArguments {
		args = append(args, "--flexvolume-secrets")
	}
	return args
}

// Plugins returns new instances of the plugins that replace stock ones, or come beside
// them. Connections to drivers last as [KeepConnections] says. A rehearsal (fake) has no
// drivers, since they mount for real. Images go with their last volume. Drivers in the registry
// are known at once: the command does not wait for them. Errors are of the command line, of the registry, and of drivers without a name.
func (o *Options) Plugins(ctx context.Context, fake bool, log *slog.Logger) ([]volume.VolumePlugin, error) {
	plugins, drivers, err := o.all(ctx, fake, log, image.Config{UnusedBytes: -1, UnusedFor: -1})
	if err != nil || drivers == nil || o.registryDir == "" {
		return plugins, err
	}
	return plugins, o.discover(ctx, drivers, log)
}

// LastingPlugins is as Plugins, for a command that runs while drivers register themselves.
// It keeps unused images for the next pods.
// Errors are of the command line, and of drivers without a name.
func (o *Options) LastingPlugins(ctx context.Context, fake bool, log *slog.Logger) ([]volume.VolumePlugin, error) {
	plugins, _, err := o.all(ctx, fake, log, image.Config{})
	return plugins, err
}

// all returns all plugins, and among them the CSI plugin; nil: there are no drivers.
func (o *Options) all(ctx context.Context, fake bool, log *slog.Logger, images image.Config) ([]volume.VolumePlugin, *controller.NodePlugin, error) {
	plugins, err := o.NFS()
	images.Layouts, images.DockerConfig, images.PlainHTTP = o.layouts, o.credentials, o.plainHTTP
	// Whoever writes the manifests can mount any hostPath, and so is root here anyway.
	plugins = append(plugins, image.New(images), glusterfs.New(glusterfs.Config{TrustPodNamespaces: true}))
	if fake {
		plugins = append(plugins, unattached{flexvolume.New(flexvolume.Config{Dir: "/nonexistent (--fake runs no drivers)"})})
	} else if c := o.flexvolume; c != (flexvolume.Config{}) {
		if c.Dir != "" && err == nil {
			c.Dir, err = filepath.Abs(c.Dir)
		}
		plugins = append(plugins, flexvolume.New(c))
	}
	if err != nil || !o.hasDrivers() {
		return plugins, nil, err
	}
	if fake {
		return nil, nil, o.usage("--fake goes without --csi-driver and --csi-registry: a driver mounts for real")
	}
	p, err := o.csi(ctx, log)
	if err != nil {
		return nil, nil, err
	}
	keep(ctx, p)
	return append(plugins, p), p, nil
}

// unattached hides that a plugin attaches.
type unattached struct{ volume.VolumePlugin }

// discover finds the drivers in the registry, and logs the sockets there that are no driver's.
func (o *Options) discover(ctx context.Context, p *controller.NodePlugin, log *slog.Logger) error {
	unknown, err := p.Discover(ctx)
	if err != nil {
		return fmt.Errorf("--csi-registry: %w", err)
	}
	for _, socket := range slices.Sorted(maps.Keys(unknown)) {
		log.Warn(socket+" registers no driver", "error", unknown[socket])
	}
	return nil
}

// ForClaims returns other instances of the same plugins, which make and delete volumes for
// claims. Connections to drivers last as [KeepConnections] says.
func (o *Options) ForClaims(ctx context.Context, log *slog.Logger) ([]volume.VolumePlugin, error) {
	plugins, err := o.NFS()
	if err != nil || !o.hasDrivers() {
		return plugins, err
	}
	c, err := o.config(ctx, log)
	if err != nil {
		return nil, err
	}
	p, err := controller.New(controller.Config{Drivers: c.Drivers, RegistryDir: c.RegistryDir, StagedDir: c.StagedDir, Logger: c.Logger})
	if err != nil {
		return nil, o.usage("%w", err)
	}
	keep(ctx, p)
	return append(plugins, claimDrivers{csitranslation.NewClaims(p, csitranslation.New()), p}), nil
}

// claimDrivers makes volumes for claims, also those of in-tree types.
type claimDrivers struct {
	*csitranslation.Claims
	drivers *controller.Plugin
}

// Drivers returns the status of all drivers, by name.
func (c claimDrivers) Drivers() []controller.DriverStatus { return c.drivers.Drivers() }

// Translator turns in-tree volumes of CSI drivers, such as gcePersistentDisk, into these
// drivers' volumes. nil: there are no drivers.
func (o *Options) Translator() volume.Translator {
	if !o.hasDrivers() {
		return nil
	}
	return csitranslation.New()
}

// NFS returns the NFS plugin under the policy; none without one, since the stock one
// will do.
func (o *Options) NFS() ([]volume.VolumePlugin, error) {
	if o.NFSPolicy == "" {
		return nil, nil
	}
	f, err := os.Open(o.NFSPolicy)
	if err != nil {
		return nil, o.usage("--nfs-policy: %w", err)
	}
	defer f.Close()
	policy, err := nfs.ParsePolicy(f)
	if err != nil {
		return nil, o.usage("--nfs-policy %s: %w", o.NFSPolicy, err)
	}
	return []volume.VolumePlugin{nfs.New(nfs.Config{Inline: policy})}, nil
}

func (o *Options) hasDrivers() bool { return len(o.drivers) > 0 || o.registryDir != "" }

func (o *Options) csi(ctx context.Context, log *slog.Logger) (*controller.NodePlugin, error) {
	c, err := o.config(ctx, log)
	if err != nil {
		return nil, err
	}
	p, err := controller.ForNode(c)
	if err != nil {
		return nil, o.usage("--csi-driver or --csi-registry: %w", err)
	}
	return p, nil
}

// stagedDir is that of all commands: each run has a root directory of its own.
const stagedDir = "/run/podvol-csi"

func (o *Options) config(ctx context.Context, log *slog.Logger) (csi.Config, error) {
	c := csi.Config{Drivers: make(map[string]string), StagedDir: stagedDir, Logger: log}
	named := make([]string, 0, len(o.drivers))
	for _, d := range o.drivers {
		name, socket, err := o.driver(ctx, d)
		if err != nil {
			return c, err
		}
		if before, twice := c.Drivers[name]; twice {
			return c, o.usage("--csi-driver names driver %s twice, at %s and at %s", name, before, socket)
		}
		c.Drivers[name] = socket
		named = append(named, name+"="+socket)
	}
	o.drivers = named // no driver is asked twice
	if o.registryDir != "" {
		abs, err := filepath.Abs(o.registryDir)
		if err != nil {
			return c, err
		}
		c.RegistryDir = abs
	}
	return c, nil
}

// driver returns the name and the absolute socket that a flag means, and asks the driver for
// a name that the flag lacks. A name begins with a letter or a digit, unlike a path.
func (o *Options) driver(ctx context.Context, flag string) (name, socket string, err error) {
	name, socket, ok := strings.Cut(flag, "=")
	unnamed := strings.HasPrefix(flag, "unix:") || strings.HasPrefix(flag, "/") || strings.HasPrefix(flag, ".") || !ok && strings.Contains(flag, "/")
	if unnamed {
		name, socket = "", flag
	} else if name == "" || socket == "" {
		return "", "", o.usage("--csi-driver %q must be NAME=SOCKET, or the path of a socket with a slash in it", flag)
	}
	if socket, err = o.pathOf(socket); err != nil {
		return "", "", err
	}
	if socket, err = filepath.Abs(socket); err != nil || !unnamed {
		return name, socket, err
	}
	ctx, cancel := context.WithTimeout(ctx, driverPatience)
	defer cancel()
	if name, err = csi.AskName(ctx, socket); err != nil {
		return "", "", fmt.Errorf("--csi-driver %s: %w", flag, err)
	}
	return name, socket, nil
}

// pathOf returns the path of a socket that may be given as drivers' own flags have it:
// unix:///run/csi.sock.
func (o *Options) pathOf(socket string) (string, error) {
	if path, isUnix := strings.CutPrefix(socket, "unix:"); isUnix {
		if path = strings.TrimPrefix(path, "//"); !strings.HasPrefix(path, "/") {
			return "", o.usage("--csi-driver %q must have an absolute path after unix:", socket)
		}
		return path, nil
	}
	if scheme, _, has := strings.Cut(socket, "://"); has {
		return "", o.usage("--csi-driver %q is of the scheme %s, and a driver is reached by a Unix socket only", socket, scheme)
	}
	return socket, nil
}

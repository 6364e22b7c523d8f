package secret_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/rendertest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/secret"
	"github.com/podvol/podvol/volume/volumetest"
)

func TestConformance(t *testing.T) { volumetest.Run(t, newPlugin, suite()) }

// On disk nothing is mounted, and all else holds.
func TestConformanceOnDisk(t *testing.T) {
	onDisk := suite()
	for i := range onDisk.Working {
		onDisk.Working[i].Want.Mount = nil
	}
	volumetest.Run(t, func() volume.VolumePlugin { return secret.New(secret.Config{OnDisk: true}) }, onDisk)
}

// Without a mount the files are the same.
func TestRenderedFilesAreTheSame(t *testing.T) { rendertest.Run(t, newPlugin, suite()) }

func newPlugin() volume.VolumePlugin { return secret.New(secret.Config{}) }

func suite() volumetest.Suite {
	const canary = "a-canary-sings"
	source := func(name string, mode *int32) v1.VolumeSource {
		return v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name, DefaultMode: mode}}
	}
	return volumetest.Suite{
		Canary: canary,
		Objects: []metav1.Object{&v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tls"}, Data: map[string][]byte{"tls.key": []byte(canary)},
		}},
		Working: []volumetest.Case{{
			Name: "whole", Spec: volumetest.Inline(source("tls", new(int32(0o400)))), Want: volumetest.Want{
				Exact: true, ReadOnly: true, Mount: &volumetest.Mount{FSType: "tmpfs"},
				Files: map[string]volumetest.File{"tls.key": {Content: canary, Mode: 0o400}}},
		}},
		Refused: []volumetest.RefusedCase{
			{Name: "missing object", Spec: volumetest.Inline(source("none", nil)), Because: "Secret default/none"},
			{Name: "no mode", Spec: volumetest.Inline(source("tls", new(int32(0o1777)))), Because: "secret.defaultMode"},
		},
	}
}

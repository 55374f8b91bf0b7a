// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// starter is what the tries of one Start share.
type starter struct {
	client *client
	plan   *plan
	app    *sdk.App
	built  *sdk.Image
	volume map[string]*sdk.Volume
	secret *sdk.Secret
	tls    *transport.Credentials // the client's
}

// startScript waits for the files and becomes the worker, which gets its credentials on stdin, and no variable of the
// secret. Its arguments: for each of three files, its hash, "" for one that the worker does not need; the path
// of the volume, "" if there is none; the folder in it of what sessions keep; the worker's flags.
const startScript = `umask 077
` + home + `mkdir -p "$here"
credentials=$MYCELYA_CREDENTIALS
unset MYCELYA_CREDENTIALS
while [ ! -e "$here/ready" ]; do sleep 0.1; done
worker=$1 exec=$2 cuda=$3 volume=$4 state=$5
shift 5
need() {
  [ -z "$1" ] || same "$1" "$2" || { echo "mycelya: $2 is not the file that the client has sent" >&2; exit 90; }
}
need "$worker" mycelya-worker
need "$exec" libmycelya_exec.so
need "$cuda" libmycelya_exec_cuda.so
if [ -n "$exec" ]; then
  torch=$(python3 -c 'from importlib.util import find_spec; print(find_spec("torch").submodule_search_locations[0])') ||
    { echo "mycelya: the image has no PyTorch" >&2; exit 91; }
  set -- "$@" --exec "$here/libmycelya_exec.so" --torch-lib "$torch/lib"
fi
set -- "$@" --crashes "$here/crashes" --kernels "${volume:-$here}/kernels" --weights "${volume:-$here}/weights" \
  --state "${volume:-$here}/$state"
exec "$here/mycelya-worker" "$@" --credentials - <<END
$credentials
END
`

// credentialsVariable is the only variable of the sandbox's secret.
const credentialsVariable = "MYCELYA_CREDENTIALS"

// The worker listens on two ports. Modal passes TCP on to the first, and to the second what comes in TLS of its own.
const (
	rawPort = 7070
	tlsPort = 7443
)

const (
	// What a sandbox gets at least; it may use more. The client's data passes through its memory.
	cpuCores  = 1
	memoryMiB = 4096
	// How long a request may take that creates a sandbox. Its end must not end with the caller's context: the answer
	// has the id, without which the sandbox could not be ended.
	createWait = 2 * time.Minute
)

var errNotStarted = errors.New("the sandbox has not started")

// prepare makes what does not depend on the GPU type.
func (l *starter) prepare(ctx context.Context) error {
	var err error
	l.app, err = l.client.Apps.FromName(ctx, appName, &sdk.AppFromNameParams{CreateIfMissing: true})
	if err != nil {
		return explain(ctx, "make the app "+appName, err)
	}
	if l.plan.volume != "" {
		v, err := l.client.Volumes.FromName(ctx, l.plan.volume, &sdk.VolumeFromNameParams{CreateIfMissing: true})
		if err != nil {
			return explain(ctx, "open the volume "+l.plan.volume, err)
		}
		l.volume = map[string]*sdk.Volume{volumePath: v}
	}
	if l.built, err = l.image(ctx); err != nil {
		return err
	}
	client, worker, err := transport.Mint(l.plan.Lease)
	var text []byte
	if err == nil {
		l.tls = client
		text, err = worker.Encode()
	}
	if err != nil {
		return provider.Errorf(provider.ErrUnavailable, "The credentials of the worker cannot be made: %v.", err)
	}
	l.secret, err = l.client.Secrets.FromMap(ctx, map[string]string{credentialsVariable: string(text)}, nil)
	return explain(ctx, "take the worker's credentials", err)
}

// try starts a sandbox with a GPU type, and the worker in it. If it fails, nothing is left running.
func (l *starter) try(ctx context.Context, gpu string) (*instance, error) {
	in, err := l.create(ctx, gpu)
	if err != nil {
		return nil, err
	}
	in.follow()
	err = l.begin(ctx, in, gpu)
	if err == nil {
		return in, nil
	}
	if stopped := in.Stop(ctx, 0); stopped != nil {
		return nil, errors.Join(err, stopped)
	}
	if in.machine != nil {
		in.Remove()
	}
	return nil, err
}

// create creates a sandbox. It finds and ends one whose creation has not been answered.
func (l *starter) create(ctx context.Context, gpu string) (*instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	name := l.client.randomName()
	if l.plan.machine != nil {
		name = l.client.nameOf(l.plan.Session)
	}
	apart, cancel := context.WithTimeout(context.WithoutCancel(ctx), createWait)
	defer cancel()
	sb, err := l.client.Sandboxes.Create(apart, l.app, l.built, &sdk.SandboxCreateParams{
		Name: name, GPU: gpu, CPU: cpuCores, MemoryMiB: memoryMiB, Regions: l.plan.regions,
		Timeout: clock(l.plan.Lease), IdleTimeout: clock(l.plan.Idle),
		Command: l.command(), Secrets: []*sdk.Secret{l.secret}, Volumes: l.volume,
		UnencryptedPorts: []int{rawPort}, EncryptedPorts: []int{tlsPort},
	})
	if errors.As(err, new(sdk.AlreadyExistsError)) {
		return nil, provider.Errorf(provider.ErrInvalidSpec, "The machine %q runs already on Modal. Use it with "+
			"RemoteMachine.attach(%[1]q, \"modal\"), or choose another name.", l.plan.Session)
	}
	if err != nil {
		if l.plan.machine == nil { // the name is this start's alone
			if lost, e := l.client.Sandboxes.FromName(apart, appName, name, nil); e == nil {
				_ = l.client.terminate(apart, lost.SandboxID, true)
			}
		}
		return nil, explain(ctx, "start a sandbox"+with(gpu), err)
	}
	in := newInstance(l.client, sb.SandboxID, l.plan.Session, l.tls)
	in.machine = l.plan.machine
	return in, nil
}

func with(gpu string) string {
	if gpu == "" {
		return ""
	}
	return " with " + gpu
}

// clock is a time of a sandbox's clocks, in whole seconds.
func clock(d time.Duration) time.Duration {
	return max(leastClock, (d + time.Second - 1).Truncate(time.Second))
}

// begin brings a created sandbox to the point where its worker can be dialled.
func (l *starter) begin(ctx context.Context, in *instance, gpu string) error {
	if in.machine != nil {
		if err := in.machine.write(in.id, l.plan.Spec, l.tls); err != nil {
			return err
		}
	}
	sb, err := l.client.Sandboxes.FromID(ctx, in.id)
	if err == nil {
		err = sb.SetTags(ctx, l.tags(gpu))
	}
	if err != nil {
		return explain(ctx, "tag the sandbox", err)
	}
	if err := l.send(ctx, in); err != nil {
		return l.notBegun(ctx, in, gpu, err)
	}
	if err := in.findTunnels(ctx, sb, l.plan.tunnel); err != nil {
		return err
	}
	return in.awaitAnswer(ctx)
}

// notBegun says why a sandbox has not got its files.
func (l *starter) notBegun(ctx context.Context, in *instance, gpu string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case <-in.Ended():
		return provider.Errorf(provider.ErrUnavailable, "The sandbox %s %v before its worker could start. %s", in.id,
			in.Exit(), in.log.tail())
	default:
	}
	if errors.Is(err, errNotStarted) {
		return &provider.Error{Kind: provider.ErrTimeout, Err: errNotStarted, Text: fmt.Sprintf("The sandbox%s has not "+
			"started within %v: Modal has no such GPU free, or pulls the image. Name other types with "+
			"gpu_fallback=\"A100-80GB,H100\", leave out region=, or wait longer with start_timeout=.", with(gpu), l.plan.start)}
	}
	return provider.Errorf(provider.ErrUnavailable, "The worker's files could not be sent to the sandbox %s: %v. The "+
		"image needs sh, sha256sum and gzip, as those based on Debian have them.", in.id, err)
}

// refuses says whether an error of a first command will be the same again.
func refuses(err error) bool {
	if errors.As(err, new(commandFailed)) {
		return true
	}
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.NotFound:
		return true
	}
	return false
}

// command is the sandbox's: the start script with the worker's flags.
func (l *starter) command() []string {
	w := l.plan
	var hashes [len(fileNames)]string
	for i, f := range w.files {
		hashes[i] = f.hash
	}
	volume := ""
	if w.volume != "" {
		volume = volumePath
	}
	args := []string{"sh", "-c", startScript, "start", hashes[0], hashes[1], hashes[2], volume,
		w.state,
		"--listen", fmt.Sprintf("0.0.0.0:%d,0.0.0.0:%d", rawPort, tlsPort), "--backend", w.backend,
		"--device", w.device, "--threads", fmt.Sprint(w.Threads), "--lease", w.Lease.String(), "--alone", w.Idle.String(),
		// A session whose client has gone counts as one with a client: not longer than the worker may be without one.
		"--grace", min(link.Default.Grace, w.Idle).String()}
	if w.Detached {
		args = append(args, "--single")
	}
	return args
}

// escape makes a text a name of a file, and different texts different names.
func escape(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, ".%02x", c)
		}
	}
	return b.String()
}

// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	sdk "github.com/modal-labs/libmodal/modal-go"
	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"

	"github.com/mycelya/mycelya/runtime/provider"
)

// layers are the commands of an image's layers on its base: PyTorch, and the machine's packages. An image that has them
// stays as it is.
func (w *plan) layers() (out [][]string) {
	install := func(packages ...string) []string {
		return []string{"RUN python3 -m pip install --no-cache-dir --root-user-action=ignore '" +
			strings.Join(packages, "' '") + "'"}
	}
	if w.torch != "" {
		out = append(out, install("torch=="+w.torch))
	}
	if len(w.Packages) > 0 {
		out = append(out, install(w.Packages...))
	}
	return out
}

// image returns the image of a plan. Modal builds each layer once for a workspace; a file remembers the ids, so that a
// later start asks for one image instead of each layer.
func (l *starter) image(ctx context.Context) (*sdk.Image, error) {
	text, _ := json.Marshal([]any{l.client.who(), os.Getenv("MODAL_SERVER_URL"), os.Getenv("MODAL_ENVIRONMENT"),
		os.Getenv("MODAL_PROFILE"), l.plan.image, l.plan.layers()})
	sum := sha256.Sum256(text)
	key := hex.EncodeToString(sum[:])
	remembered := imageIDs()
	if id := remembered[key]; id != "" {
		if image, err := l.client.Images.FromID(ctx, id); err == nil {
			return image, nil
		}
	}
	image := l.client.Images.FromRegistry(l.plan.image, nil)
	for _, commands := range l.plan.layers() {
		image = image.DockerfileCommands(commands, nil)
	}
	said := new(log)
	image, err := image.Build(observe(ctx, func(answer any) {
		if r, ok := answer.(*pb.ImageJoinStreamingResponse); ok {
			for _, line := range r.GetTaskLogs() {
				_, _ = said.Write([]byte(line.GetData()))
			}
		}
	}), l.app)
	if err != nil {
		err := explain(ctx, "build the image of "+l.plan.image+" with PyTorch and the machine's packages", err)
		if e, ok := err.(*provider.Error); ok {
			e.Text += " Check packages= and image=. " + said.tail()
		}
		return nil, err
	}
	remembered[key] = image.ImageID
	rememberImages(remembered)
	return image, nil
}

// imageFile is the file of the ids of images; "" if the user has no cache.
func imageFile() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "mycelya", "modal", "images.json")
}

// imageIDs reads the file. It is a cache: without it, images are asked for by their layers.
func imageIDs() map[string]string {
	out := map[string]string{}
	if text, err := os.ReadFile(imageFile()); err == nil {
		_ = json.Unmarshal(text, &out)
	}
	return out
}

func rememberImages(ids map[string]string) {
	path := imageFile()
	text, err := json.MarshalIndent(ids, "", "  ")
	if path == "" || err != nil || os.MkdirAll(filepath.Dir(path), 0o700) != nil {
		return
	}
	_ = writeFile(path, text)
}

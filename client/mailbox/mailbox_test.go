// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package mailbox_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/client/cabi"
	"github.com/mycelya/mycelya/client/mailbox"
	"github.com/mycelya/mycelya/client/mailbox/recorder"
	"github.com/mycelya/mycelya/runtime"
	"github.com/mycelya/mycelya/trace"
)

// C mailboxes live as long as the process, and there are few: a test leaves its own as it was for the next one.
var free = func() chan int32 {
	all := make(chan int32, mailboxes)
	for index := range int32(mailboxes) {
		all <- index
	}
	return all
}()

// release gives back what an item has.
func release(item *runtime.Item) {
	if item.Upload != nil && item.Upload.Release != nil {
		item.Upload.Release()
	}
	if item.Release != nil {
		item.Release()
	}
}

func open(t testing.TB) (int32, runtime.Mailbox) {
	index := <-free
	b, err := mailbox.New(index)
	require.NoError(t, err)
	b.Open()
	t.Cleanup(func() {
		b.Close(errClosed)
		for item := b.Take(); item != nil; item = b.Take() {
			release(item)
		}
		b.Stalls(func(trace.Place, uint64, time.Duration) {})
		c := b.Credits()
		for _, n := range []*atomic.Int64{&c.OnWay, &c.Allowed, &c.Hurry} {
			n.Store(0)
		}
		b.Wake()
		b.Wait() // forgets the Wake
		free <- index
	})
	return index, b
}

const patience = time.Minute

var errClosed = &runtime.Error{Kind: runtime.KindLost, Text: "it is lost"}

// sleeps waits until the sender sleeps or dozes. A goroutine may run much later than it was started.
func sleeps(t *testing.T, index int32) {
	t.Helper()
	require.Eventually(t, func() bool { return recorder.Asleep(index) }, patience, time.Millisecond)
}

func TestItemsArriveInOrder(t *testing.T) {
	index, b := open(t)
	require.Nil(t, b.Take())
	b.Credits().Allowed.Store(100)
	kind, inUse := recorder.Post(index, 7)
	require.Zero(t, kind)
	read, memory := recorder.Read(index, 5, 3, trace.Place{1, 2})
	sync := recorder.Sync(index, trace.Place{3, 4})
	room := recorder.Room(index, trace.Place{5, 6})

	first := b.Take()
	require.Equal(t, [2]uint64{7, 0}, first.Trace.Key)
	require.True(t, inUse())
	first.Release()
	require.False(t, inUse())

	second := b.Take()
	require.Nil(t, second.Trace)
	require.Equal(t, read, second.Ticket)
	require.Equal(t, runtime.RequestRead, second.Request)
	require.Equal(t, trace.Place{1, 2}, second.At)
	require.EqualValues(t, 5, second.View.Storage)
	require.Equal(t, []int64{3}, second.View.Sizes)
	require.Equal(t, []int64{1}, second.View.Strides)
	copy(second.Dst, "abc")
	require.Equal(t, "abc", string(memory))

	for _, want := range []struct {
		ticket uint64
		ask    runtime.Request
		at     trace.Place
	}{{sync, runtime.RequestSync, trace.Place{3, 4}}, {room, runtime.RequestRoom, trace.Place{5, 6}}} {
		l := b.Take()
		require.Equal(t, want.ticket, l.Ticket)
		require.Equal(t, want.ask, l.Request)
		require.Equal(t, want.at, l.At)
		l.Answer(nil)
		kind, _ := recorder.Wait(want.ticket, patience)
		require.Zero(t, kind)
	}
	require.Nil(t, b.Take())
	recorder.End(read)
}

// TestUploads: the sender gets uploads in the order of the posts, and copies of their bytes. Small ones do not wake it,
// except for the first item, which starts the worker, and many together.
func TestUploads(t *testing.T) {
	index, b := open(t)
	waits := func() chan struct{} {
		woken := make(chan struct{})
		go func() {
			b.Wait()
			close(woken)
		}()
		sleeps(t, index)
		return woken
	}
	upload := func(bytes int) {
		kind, ticket, why := recorder.Upload(index, 7, make([]byte, bytes), trace.Place{})
		require.Zero(t, kind, why)
		require.Zero(t, ticket)
	}
	woken := waits()
	data := []byte("bytes")
	kind, ticket, _ := recorder.Upload(index, 7, data, trace.Place{1, 2})
	require.Zero(t, kind)
	require.Zero(t, ticket)
	<-woken
	copy(data, "other")
	u := b.Take()
	require.Nil(t, u.Trace)
	require.Zero(t, u.Ticket)
	require.EqualValues(t, 7, u.Upload.Storage)
	require.Equal(t, "bytes", string(u.Upload.Data))
	require.Equal(t, uintptr(unsafe.Pointer(unsafe.SliceData(data))), u.Upload.Address)
	require.Equal(t, trace.Place{1, 2}, u.At)
	u.Upload.Release()

	for what, wakes := range map[string]func(){
		"a trace":         func() { recorder.Post(index, 9) },
		"a medium one":    func() { upload(64<<10 + 1) },
		"many small ones": func() { upload(64 << 10); upload(1<<20 - 64<<10 + 1) },
		"and a small one": func() { upload(1); recorder.End(recorder.Sync(index, trace.Place{})) },
		"a MiB, in sixteen": func() {
			for range 16 {
				upload(64 << 10)
			}
		},
	} {
		woken := waits()
		upload(0)
		upload(5)
		select {
		case <-woken:
			t.Fatal("an upload has woken the sender")
		case <-time.After(5 * time.Millisecond):
		}
		wakes()
		select {
		case <-woken:
		case <-time.After(patience):
			t.Fatalf("%s has not woken the sender", what)
		}
		for item := b.Take(); item != nil; item = b.Take() {
			release(item)
		}
	}
}

// TestUploadsThatWait: the caller of an upload waits if it is large, or if the bytes of others are too many.
func TestUploadsThatWait(t *testing.T) {
	index, b := open(t)
	take := func() *runtime.Item {
		item := b.Take()
		require.NotNil(t, item)
		return item
	}
	large := make([]byte, catalogue.UploadCopied+1)
	kind, ticket, _ := recorder.Upload(index, 1, large, trace.Place{})
	require.Equal(t, recorder.Pending, kind)
	item := take()
	require.Nil(t, item.Upload.Release, "the caller's bytes")
	require.Equal(t, ticket, item.Ticket)
	require.Equal(t, unsafe.SliceData(large), unsafe.SliceData(item.Upload.Data))
	item.Answer(nil)
	kind, _ = recorder.Wait(ticket, patience)
	require.Zero(t, kind)

	kind, _, readers := recorder.UploadShared(index, 2, catalogue.UploadUnderWay)
	require.Zero(t, kind)
	shared := take()
	require.Equal(t, &runtime.Shared{Block: 7, FD: 3, Size: catalogue.UploadUnderWay, Offset: 16}, shared.Upload.Shared)
	kind, ticket, _ = recorder.Upload(index, 1, []byte("x"), trace.Place{})
	require.Equal(t, recorder.Pending, kind, "there is no room")
	take().Answer(nil)
	recorder.Wait(ticket, patience)
	kind, ticket, others := recorder.UploadShared(index, 2, 5)
	require.Equal(t, recorder.Pending, kind)
	require.EqualValues(t, 1, readers())
	shared.Upload.Release()
	require.Zero(t, readers())
	item = take()
	item.Answer(nil)
	recorder.Wait(ticket, patience)
	require.EqualValues(t, 1, others(), "the mailbox does not give them back")
	item.Upload.Release()
	require.Zero(t, others())
	kind, _, _ = recorder.Upload(index, 1, []byte("x"), trace.Place{})
	require.Zero(t, kind, "there is room again")
	take().Upload.Release()
	kind, _, readers = recorder.UploadShared(index, 2, 2*catalogue.UploadUnderWay)
	require.Zero(t, kind, "one is always taken")
	take().Upload.Release()
	require.Zero(t, readers())
}

func TestTheQueueGrows(t *testing.T) {
	index, b := open(t)
	const n = 1000
	for i := range uint64(n) {
		kind, _ := recorder.Post(index, i)
		require.NotEqual(t, int32(runtime.KindRuntime), kind)
		if i%3 == 2 { // the queue is not empty when it grows
			require.EqualValues(t, i/3, b.Take().Trace.Key[0])
		}
	}
	for i := uint64(n / 3); i < n; i++ {
		require.Equal(t, i, b.Take().Trace.Key[0])
	}
	require.Nil(t, b.Take())
}

func TestAClosedMailboxTakesNothing(t *testing.T) {
	index, b := open(t)
	kept := recorder.Sync(index, trace.Place{})
	b.Close(errClosed)
	kind, inUse := recorder.Post(index, 1)
	require.EqualValues(t, runtime.KindLost, kind)
	require.False(t, inUse())
	require.Zero(t, recorder.Sync(index, trace.Place{}))
	require.Zero(t, recorder.Room(index, trace.Place{}))
	ticket, _ := recorder.Read(index, 1, 4, trace.Place{})
	require.Zero(t, ticket)
	for _, bytes := range []int{1, catalogue.UploadCopied + 1} {
		kind, _, why := recorder.Upload(index, 1, make([]byte, bytes), trace.Place{})
		require.EqualValues(t, runtime.KindLost, kind)
		require.Equal(t, "it is lost", why)
	}
	kind, _, readers := recorder.UploadShared(index, 1, 5)
	require.EqualValues(t, runtime.KindLost, kind)
	require.Zero(t, readers())
	require.Equal(t, kept, b.Take().Ticket, "items that were there stay")
	require.Nil(t, b.Take())
	b.Open()
	kind, _ = recorder.Post(index, 1)
	require.NotEqual(t, int32(runtime.KindLost), kind)

	_, err := mailbox.New(mailboxes)
	require.ErrorContains(t, err, "at most 64 devices")
	kind, _, why := recorder.Upload(mailboxes, 1, nil, trace.Place{})
	require.EqualValues(t, runtime.KindRuntime, kind)
	require.Equal(t, "mycelya:64 is not open.", why)
	kind, _, readers = recorder.UploadShared(mailboxes, 1, 5)
	require.EqualValues(t, runtime.KindRuntime, kind)
	require.Zero(t, readers())
}

const mailboxes = 64 // MAILBOXES

func TestATicketEndsWithItsAnswer(t *testing.T) {
	index, b := open(t)
	ticket := recorder.Sync(index, trace.Place{})
	require.Equal(t, index, recorder.Device(ticket))
	kind, _ := recorder.Wait(ticket, 0)
	require.Equal(t, recorder.Pending, kind)
	kind, _ = recorder.Wait(ticket, 5*time.Millisecond)
	require.Equal(t, recorder.Pending, kind)

	long := strings.Repeat("é", 5000)
	l := b.Take()
	l.Answer(&runtime.Error{Kind: runtime.KindValue, Text: long})
	l.Answer(nil) // the first answer counts
	kind, text := recorder.Wait(ticket, patience)
	require.EqualValues(t, runtime.KindValue, kind)
	require.Equal(t, cabi.Cut(long, cabi.MaxText), text)

	kind, text = recorder.Wait(ticket, patience)
	require.EqualValues(t, runtime.KindRuntime, kind)
	require.Contains(t, text, "does not exist")
	require.Equal(t, recorder.Ended, recorder.Device(ticket))
	next := recorder.Sync(index, trace.Place{}) // in the same slot
	require.NotEqual(t, ticket, next)
	recorder.End(ticket)
	require.Equal(t, index, recorder.Device(next), "the end of an old ticket does not end the new one")
	recorder.End(next)
	b.Take().Answer(&runtime.Error{Text: "too late"}) // of an ended ticket: ignored
	_, text = recorder.Wait(next, patience)
	require.Contains(t, text, "does not exist")
}

func TestCredits(t *testing.T) {
	index, b := open(t)
	c := b.Credits()
	c.Allowed.Store(2)
	kind, _ := recorder.Post(index, 1)
	require.Zero(t, kind)
	require.EqualValues(t, 1, c.OnWay.Load())
	kind, _ = recorder.Post(index, 2)
	require.Equal(t, recorder.Pending, kind)
	recorder.End(recorder.Sync(index, trace.Place{}))
	require.EqualValues(t, 2, c.OnWay.Load(), "a request takes no credit")
	c.OnWay.Store(0)
	kind, _ = recorder.Post(index, 3)
	require.Zero(t, kind)
}

func TestAPostWakesTheSender(t *testing.T) {
	index, b := open(t)
	woken := make(chan *runtime.Item)
	go func() {
		b.Wait()
		woken <- b.Take()
	}()
	sleeps(t, index)
	recorder.Post(index, 9)
	require.EqualValues(t, 9, (<-woken).Trace.Key[0])

	recorder.Post(index, 10)
	b.Wait() // returns: there is an item
	b.Take()
	b.Wake()
	b.Wait() // returns: no Wait has seen the Ring
	go func() {
		b.Wait()
		woken <- nil
	}()
	select {
	case <-woken:
		t.Fatal("Wait returned without an item or a Ring")
	case <-time.After(20 * time.Millisecond):
	}
	b.Wake()
	<-woken
}

// TestADozingSender: traces do not wake it, requests and a lack of credits do, and it gets up after a while.
func TestADozingSender(t *testing.T) {
	index, b := open(t)
	b.Credits().Allowed.Store(100)
	doze := func(d time.Duration) <-chan time.Duration {
		up := make(chan time.Duration, 1)
		begun := time.Now()
		go func() { b.Doze(d); up <- time.Since(begun) }()
		return up
	}
	recorder.Post(index, 0) // the first item wakes it always
	require.NotNil(t, b.Take())
	for posted := false; !posted; { // the post may come too late for so short a time
		up := doze(50 * time.Millisecond)
		for ; len(up) == 0 && !posted; time.Sleep(time.Millisecond) {
			if posted = recorder.Asleep(index); posted {
				recorder.Post(index, 1)
			}
		}
		require.GreaterOrEqual(t, <-up, 50*time.Millisecond)
	}
	require.NotNil(t, b.Take())

	up := doze(patience)
	sleeps(t, index)
	recorder.Post(index, 2)
	recorder.Sync(index, trace.Place{})
	require.Less(t, <-up, patience)
	b.Take()
	b.Take().Answer(nil)

	up = doze(patience)
	sleeps(t, index)
	b.Wake()
	<-up

	up = doze(patience)
	sleeps(t, index)
	b.Credits().Allowed.Store(1)
	kind, _ := recorder.Post(index, 3)
	require.Equal(t, recorder.Pending, kind)
	<-up
	b.Doze(patience) // returns: there is an item
	b.Take()

	for range 2000 { // posts while it lies down and gets up
		up := make(chan struct{})
		go func() { b.Doze(20 * time.Microsecond); close(up) }()
		ticket := recorder.Sync(index, trace.Place{})
		<-up
		item := b.Take()
		if item == nil { // it got up before the post
			b.Wait()
			item = b.Take()
		}
		require.Equal(t, ticket, item.Ticket)
		item.Answer(nil)
		recorder.End(ticket)
	}
}

func TestStallsAreCountedByPlace(t *testing.T) {
	index, b := open(t)
	type stall struct {
		waits uint64
		took  time.Duration
	}
	stalls := func() map[trace.Place]stall {
		out := map[trace.Place]stall{}
		b.Stalls(func(at trace.Place, waits uint64, took time.Duration) { out[at] = stall{waits, took} })
		return out
	}
	one, two := trace.Place{1, 8}, trace.Place{1, 10}
	for _, at := range []trace.Place{one, two, one} {
		ticket := recorder.Sync(index, at)
		for range 2 { // a second wait for the same answer is the same stall
			recorder.Wait(ticket, 5*time.Millisecond)
		}
		b.Take().Answer(nil)
		recorder.Wait(ticket, patience) // the answer is there: no stall
	}
	got := stalls()
	require.Len(t, got, 2)
	require.EqualValues(t, 2, got[one].waits)
	require.EqualValues(t, 1, got[two].waits)
	require.GreaterOrEqual(t, got[one].took, 20*time.Millisecond)
	require.Empty(t, stalls())
}

// TestManyThreads lets threads post and wait while a sender answers, some of them polling first.
func TestManyThreads(t *testing.T) {
	index, b := open(t)
	b.Credits().Hurry.Store(1)
	const threads, rounds = 8, 200
	go func() {
		for answered := 0; answered < threads*rounds; {
			b.Wait()
			for l := b.Take(); l != nil; l = b.Take() {
				l.Answer(&runtime.Error{Kind: runtime.KindIndex, Text: fmt.Sprint(l.At)})
				answered++
			}
		}
	}()
	var wg sync.WaitGroup
	for thread := range uint32(threads) {
		wg.Go(func() {
			for round := range uint32(rounds) {
				at := trace.Place{thread, round}
				ticket := recorder.Sync(index, at)
				kind, text := recorder.Wait(ticket, patience)
				if kind != int32(runtime.KindIndex) || text != fmt.Sprint(at) {
					t.Errorf("thread %d, round %d: kind %d, %q", thread, round, kind, text)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestTicketsOfCalls: a call into Go may begin a wait too. Its waits are stalls only if it says so.
func TestTicketsOfCalls(t *testing.T) {
	index, b := open(t)
	for _, stalls := range []bool{false, true} {
		ticket, answer := b.Ticket(trace.Place{1, 2}, stalls)
		require.Equal(t, index, recorder.Device(ticket))
		kind, _ := recorder.Wait(ticket, 2*time.Millisecond)
		require.Equal(t, recorder.Pending, kind)
		answer(errClosed)
		kind, why := recorder.Wait(ticket, patience)
		require.EqualValues(t, runtime.KindLost, kind)
		require.Equal(t, "it is lost", why)
		counted := false
		b.Stalls(func(trace.Place, uint64, time.Duration) { counted = true })
		require.Equal(t, stalls, counted)
	}
}

// BenchmarkPost is the time to post a trace and take it.
func BenchmarkPost(b *testing.B) {
	index, box := open(b)
	for b.Loop() {
		recorder.Post(index, 1)
		box.Take()
	}
}

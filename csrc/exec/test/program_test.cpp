// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Programs that prepare refuses, with the error texts, and calls that do not match their program.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "exec/test/Session.h"

namespace mycelya::exec::test {
namespace {

TEST(Abi, VersionAndFacts) {
  EXPECT_EQ(myc_exec_abi_version(), static_cast<uint32_t>(MYCELYA_ABI_VERSION));
  Session s;
  char json[1024];
  const uint64_t n = myc_exec_info(s.get(), json, sizeof(json));
  ASSERT_LT(n, sizeof(json));
  const std::string text(json);
  EXPECT_EQ(text.size(), n);
  EXPECT_EQ(text.rfind("{\"device\":\"cpu\",\"name\":\"", 0), 0u) << text;
  EXPECT_NE(text.find("\"torch\":\"2."), std::string::npos) << text;
  EXPECT_EQ(myc_exec_info(s.get(), json, 2), n);  // too small: returns only the length
  myc_error e{};
  EXPECT_EQ(myc_exec_sync(s.get(), &e), MYC_OK);
}

TEST(Abi, UnknownDevicesAreRefused) {
  for (const char* device : {"", "gpu", "cpu:1", "cuda:", "cuda:-1", "cuda:999", "cuda:1x", "meta", "mycelya"}) {
    myc_error e{};
    EXPECT_EQ(myc_exec_new(device, 0, &e), nullptr) << device;
    EXPECT_EQ(std::string(e.text),
              "\"" + std::string(device) + "\" is not a device of a worker; it takes cpu, cuda or cuda:<index>.");
    EXPECT_EQ(e.kind, MYC_E_VALUE);
  }
  myc_error e{};
  EXPECT_EQ(myc_exec_new("cpu", -1, &e), nullptr);
  EXPECT_STREQ(e.text, "A worker can't have -1 threads.");
}

TEST(Program, EveryPrefixOfAProgramIsRefused) {
  Session s;
  Builder b;
  const uint64_t p = b.Param();
  const uint64_t x = b.Fresh(MYC_F32, {P(p), 3}), y = b.Tensor(b.Buffer(), MYC_F32, {3}, {1}, P(p));
  b.Call("aten::cat", {List(MYC_L_TENSORS, {T(x), T(x)}), Int(0)}, {b.Fresh(MYC_F32, {4, 3})});
  b.Call("aten::sum.dim_IntList", {T(x), Ints({0}), Bool(false), Dtype(MYC_F32)}, {y});
  b.Call("aten::gelu", {T(y), Str("tanh")}, {b.Fresh(MYC_F32, {3})});
  b.Copy(y, y);
  b.Alloc(0, P(p));
  b.Clone(1, 0);
  b.Resize(1, 4);
  b.Free(1);
  const Words words = b.Done();
  for (size_t n = 0; n < words.size(); ++n) {
    EXPECT_NE(s.Refusal(Words(words.begin(), words.begin() + static_cast<int64_t>(n))), "accepted") << n;
  }
  Words longer = words;
  longer.push_back(0);
  EXPECT_EQ(s.Refusal(longer), "BUG: the program has 1 words too many.");
  EXPECT_EQ(s.Refusal(words), "accepted");
}

TEST(Program, IndicesAndCountsAreChecked) {
  Session s;
  // nparams nbuffers ninputs noutputs noperators ntensors nkernels nsteps nversions
  EXPECT_EQ(s.Refusal({}), "BUG: the program ends after 0 words, before the number of parameters.");
  EXPECT_EQ(s.Refusal({uint64_t{1} << 40, 0, 0, 0}),
            "BUG: word 0 of the program is 1099511627776, but the number of parameters must be below 16777217.");
  EXPECT_EQ(s.Refusal({0, uint64_t{1} << 40, 0, 0}),
            "BUG: word 1 of the program is 1099511627776, but the number of buffers must be below 1048577.");
  EXPECT_EQ(s.Refusal({0, 1, 1, 1}), "BUG: word 3 of the program is 1, but a buffer must be below 1.");
  EXPECT_EQ(s.Refusal({0, 1, 0, 1, 1}), "BUG: word 4 of the program is 1, but a buffer must be below 1.");
  EXPECT_EQ(s.Refusal({0, 0, 0, 0, 1, 9, 0}),
            "BUG: an operator's name of 9 bytes does not fit into the 1 words after it.");
  EXPECT_EQ(s.Refusal({0, 0, 0, 0, 0, UINT64_MAX, 0}),
            "BUG: word 5 of the program is 18446744073709551615, more tensors than the 1 words after it can hold.");
  EXPECT_EQ(s.Refusal({0, 1, 0, 0, 0, 0, 0, 1, MYC_S_FREE, 0, 1}),
            "BUG: word 10 of the program is 1, but a buffer must be below 1.");
  EXPECT_EQ(s.Refusal({0, 1, 0, 0, 0, 0, 0, 1, MYC_S_FREE, UINT64_MAX, 1}),
            "BUG: word 9 of the program is 18446744073709551615, but a record must be below 4294967295.");
  EXPECT_EQ(s.Refusal({0, 0, 0, 0, 0, 0, 0, 1, 77, 0, 0}), "BUG: word 8 of the program is 77, which starts no step.");
  EXPECT_EQ(s.Refusal({0, 0, 0, 0, 0, 0, 0, 1, MYC_S_CALL, 0, 0}),
            "BUG: word 10 of the program is 0, but an operator must be below 0.");
  EXPECT_EQ(s.Refusal({0, 1, 0, 0, 0, 1, 0, MYC_DTYPES, 0, 1, 0}), "BUG: 21 is not the number of a dtype.");
  EXPECT_EQ(s.Refusal({0, 1, 0, 0, 0, 1, 0, MYC_F32, 256, 1, 0}),
            "BUG: word 8 of the program is 256, but a tensor's rank must be below 256.");
  EXPECT_EQ(s.Refusal({2, 1, 0, 0, 0, 1, 0, MYC_F32, 0, 1, ~uint64_t{2}}),
            "BUG: word 10 of the program is parameter 2 of 2, for a storage offset.");
  EXPECT_EQ(s.Refusal({0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1, 1}),
            "BUG: word 9 of the program is 0, but an output must be below 0.");
}

std::string RefusedCall(Session& s, const std::string& op, const std::vector<Words>& args, size_t results,
                        int32_t* kind = nullptr) {
  Builder b;
  b.Param();
  b.Param();
  const uint64_t x = b.Fresh(MYC_F32, {2});
  b.Call(op, args, std::vector<uint64_t>(results, x));
  return s.Refusal(b.Done(), kind);
}

TEST(Program, OperatorsAreLookedUp) {
  Session s;
  int32_t kind = 0;
  EXPECT_EQ(RefusedCall(s, "aten::no_such_op", {}, 0, &kind), "The worker's PyTorch has no operator aten::no_such_op.");
  EXPECT_EQ(kind, MYC_E_NOT_IMPLEMENTED);
  EXPECT_EQ(RefusedCall(s, "aten::add.NoOverload", {}, 0),
            "The worker's PyTorch has no operator aten::add.NoOverload.");
  EXPECT_EQ(RefusedCall(s, "inductor::_reinterpret_tensor", {}, 0),
            "A worker runs operators of aten, its own, and those of libraries that its MYCELYA_LIBRARIES names, not "
            "inductor::_reinterpret_tensor.");
  // Operators with files, pointers, raw storages, packed weights, and views.
  for (const char* op : {"aten::from_file", "aten::from_file.out", "aten::_reshape_alias", "aten::set_.source_Storage",
                         "aten::_reshape_alias_copy", "aten::as_strided", "aten::record_stream", "aten::lstm.input",
                         "aten::_nested_view_from_buffer", "aten::quantized_lstm_cell", "aten::mkldnn_rnn_layer"}) {
    EXPECT_EQ(RefusedCall(s, op, {}, 0, &kind), std::string("A worker doesn't run ") + op +
                                                    ": programs call only operators that are in the list that is "
                                                    "generated from what the client records.");
    EXPECT_EQ(kind, MYC_E_VALUE);
  }
  EXPECT_EQ(RefusedCall(s, "", {}, 0),
            "A worker runs operators of aten, its own, and those of libraries that its MYCELYA_LIBRARIES names, not .");
}

TEST(Program, ArgumentsMustFitTheSchema) {
  Session s;
  int32_t kind = 0;
  EXPECT_EQ(RefusedCall(s, "aten::mm", {T(0), Str("x")}, 1, &kind),
            "BUG: argument mat2 of aten::mm takes Tensor, not a string.");
  EXPECT_EQ(kind, MYC_E_TYPE);
  EXPECT_EQ(RefusedCall(s, "aten::mm", {T(0)}, 1), "BUG: aten::mm is not given its argument mat2.");
  EXPECT_EQ(RefusedCall(s, "aten::mm", {T(0), T(0), T(0)}, 1), "BUG: aten::mm takes 2 arguments, not 3.");
  EXPECT_EQ(RefusedCall(s, "aten::mm", {T(0), T(1)}, 1),
            "BUG: word 23 of the program is 1, but a tensor index must be below 1.");
  EXPECT_EQ(RefusedCall(s, "aten::_softmax", {T(0), Number(MYC_N_F64, 0), Bool(false)}, 1),
            "BUG: argument dim of aten::_softmax takes int, not a number.");
  EXPECT_EQ(RefusedCall(s, "aten::sum", {T(0), Int(6)}, 1),
            "BUG: argument dtype of aten::sum takes ScalarType, not an int.");
  EXPECT_EQ(RefusedCall(s, "aten::sum.dim_IntList", {T(0), Int(1)}, 1),
            "BUG: argument dim of aten::sum.dim_IntList takes int[], not an int.");
  EXPECT_EQ(RefusedCall(s, "aten::cat", {List(MYC_L_OPT_TENSORS, {T(0), None()}), Int(0)}, 1),
            "BUG: argument tensors of aten::cat takes Tensor, not none.");
  EXPECT_EQ(RefusedCall(s, "aten::cat", {List(MYC_L_TENSORS, {List(MYC_L_TENSORS, {})}), Int(0)}, 1),
            "BUG: argument tensors of aten::cat is a list in a list.");
  EXPECT_EQ(RefusedCall(s, "aten::neg_", {Number(MYC_N_F64, 0)}, 0),
            "BUG: argument self of aten::neg_ is written; it can't be a number.");
  EXPECT_EQ(RefusedCall(s, "aten::neg", {Number(MYC_N_C128, 1)}, 1),
            "BUG: the second half of a number is parameter 2 of 2.");
  EXPECT_EQ(RefusedCall(s, "aten::clone", {T(0), {MYC_W_MEMFMT, 9}}, 1),
            "BUG: argument memory_format of aten::clone takes MemoryFormat, not a memory format numbered 9.");
  EXPECT_EQ(RefusedCall(s, "aten::full_like", {T(0), Int(1), None(), {MYC_W_LAYOUT, 1}}, 1),
            "BUG: argument layout of aten::full_like takes Layout, not a layout numbered 1.");
  EXPECT_EQ(RefusedCall(s, "aten::neg", {None()}, 1), "BUG: argument self of aten::neg takes Tensor, not none.");
}

TEST(Program, ResultsMustFitTheSchema) {
  Session s;
  EXPECT_EQ(RefusedCall(s, "aten::neg", {T(0)}, 2),
            "BUG: aten::neg returns 1 new tensors, but the program lists 2 results.");
  EXPECT_EQ(RefusedCall(s, "aten::neg_", {T(0)}, 1),
            "BUG: aten::neg_ returns 0 new tensors, but the program lists 1 results.");
  EXPECT_EQ(RefusedCall(s, "aten::neg_", {T(0)}, 0), "accepted");
}

TEST(Program, ManualSeedIsNoOperatorOfPyTorch) {
  Session s;
  const std::string want = "BUG: mycelya::manual_seed takes a generator and an integer and returns nothing.";
  EXPECT_EQ(RefusedCall(s, "mycelya::manual_seed", {Generator(0), Number(MYC_N_I64, 1)}, 0), "accepted");
  EXPECT_EQ(RefusedCall(s, "mycelya::manual_seed", {Generator(0), Number(MYC_N_F64, 1)}, 0), want);
  EXPECT_EQ(RefusedCall(s, "mycelya::manual_seed", {Generator(0)}, 0), want);
  EXPECT_EQ(RefusedCall(s, "mycelya::manual_seed", {Generator(0), Number(MYC_N_I64, 1)}, 1), want);
}

TEST(Program, LongErrorsAreCutAtACharacter) {
  Session s;
  for (const size_t lead : {0, 1, 2}) {
    std::string name = "aten::" + std::string(lead, 'x');
    while (name.size() < 9000) name += "\xe2\x82\xac";  // the euro sign, 3 bytes
    const std::string text = RefusedCall(s, name, {}, 0);
    EXPECT_LE(text.size(), 8187u);
    EXPECT_GE(text.size(), 8185u);
    EXPECT_EQ(text.substr(text.size() - 3), "\xe2\x82\xac");
  }
}

TEST(Program, CallsMustFitTheProgram) {
  Session s;
  const at::Tensor x = at::arange(2, c10::ScalarType::Float);
  s.Upload(1, x);
  s.Upload(2, x);
  Builder b;
  const uint64_t p = b.Param();
  const uint64_t in = b.Buffer(), kept = b.Buffer();
  const uint64_t t = b.Tensor(in, MYC_F32, {2}), u = b.Tensor(kept, MYC_F32, {2});
  const uint64_t r = b.Fresh(MYC_F32, {2});
  b.Call("aten::mul_.Tensor", {T(t), Number(MYC_N_F64, p)});
  b.Call("aten::add.Tensor", {T(t), T(u), Int(1)}, {r});
  myc_prog* program = s.Prepare(b);
  auto errors = s.Run(program, {}, {{in, 1}, {kept, 2}}, {{2, 3}});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].text, "BUG: the program has 1 parameters, the call 0.");
  EXPECT_EQ(errors[0].step, UINT32_MAX);
  // Nothing ran: new storages are poisoned, and the others keep their content.
  EXPECT_EQ(s.ReadF32(3, {2}).text, errors[0].text);
  EXPECT_TRUE(at::equal(s.ReadF32(1, {2}).tensor, x));
  EXPECT_TRUE(at::equal(s.ReadF32(2, {2}).tensor, x));

  for (const Pairs& inputs : {Pairs{{9, 2}}, Pairs{{in, 2}, {in, 2}}, Pairs{{in, 0}}}) {
    errors = s.Run(program, {Bits(2)}, inputs, {});
    ASSERT_EQ(errors.size(), 1u);
    EXPECT_NE(errors[0].text.find("a buffer is bound once."), std::string::npos) << errors[0].text;
  }
  for (const Pairs& outputs : {Pairs{{9, 5}}, Pairs{{2, 5}, {2, 6}}}) {
    errors = s.Run(program, {Bits(2)}, {}, outputs);
    ASSERT_EQ(errors.size(), 1u);
    EXPECT_NE(errors[0].text.find("a buffer is an output once."), std::string::npos) << errors[0].text;
  }
}

}  // namespace
}  // namespace mycelya::exec::test

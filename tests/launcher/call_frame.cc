// Calls a handler of XLA's foreign function interface as XLA would, from outside of XLA.
//
// Source: xla/ffi/api/c_api.h, which comes with jaxlib.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

// Version 0.5 of the interface, JAX 0.12, has other names for two functions.
#if XLA_FFI_API_MINOR < 5
#define XLA_FFI_Error_GetDetails XLA_FFI_Error_GetMessage
#define XLA_FFI_Error_GetDetails_Args XLA_FFI_Error_GetMessage_Args
#endif

struct XLA_FFI_Error {
  std::string message;
};

namespace {

int stream;  // its address stands for a stream
std::map<int, void *> states;
int64_t types = 0;

XLA_FFI_Error *create_error(XLA_FFI_Error_Create_Args *args) {
  return new XLA_FFI_Error{args->message ? args->message : ""};
}
void destroy_error(XLA_FFI_Error_Destroy_Args *args) { delete args->error; }
void message_of(XLA_FFI_Error_GetDetails_Args *args) {
  args->message = args->error->message.c_str();
}
XLA_FFI_Error *stream_of(XLA_FFI_Stream_Get_Args *args) {
  args->stream = &stream;
  return nullptr;
}
XLA_FFI_Error *register_type(XLA_FFI_Type_Register_Args *args) {
  args->type_id->type_id = ++types;
  return nullptr;
}
XLA_FFI_Error *set_state(XLA_FFI_State_Set_Args *args) {
  states[args->stage] = args->state;
  return nullptr;
}
XLA_FFI_Error *get_state(XLA_FFI_State_Get_Args *args) {
  args->state = states[args->stage];
  return args->state ? nullptr : new XLA_FFI_Error{"no state of this stage"};
}

// From 0.5 on the launcher also calls XLA by a table that no header describes. These are the places
// and forms of the four functions that it calls, as its code in JAX 0.12.0 has them.
enum { PASS_ON = 0, PLACE_OF_STATE = 8, STREAM = 10, CAPABILITY = 19, OWN_FUNCTIONS = 64 };
struct Stream {
  virtual ~Stream() = default;
  virtual void *handle() { return &stream; }
} xla_stream;
// A variant, where all zeros but for two numbers say CUDA.
int32_t capability[64];
int64_t kept[8][64];  // a handler's states by stage, all zeros at first
XLA_FFI_Error *pass_on(void *) { return new XLA_FFI_Error{"an error in XLA's own form"}; }
void *place_of_state(void *, int stage) { return kept[stage]; }
XLA_FFI_Error *xla_stream_of(void *, void **result) {
  *result = &xla_stream;
  return nullptr;
}
XLA_FFI_Error *capability_of(void *, void **result) {
  *result = capability;
  return nullptr;
}
XLA_FFI_Error *unknown(void *) { return new XLA_FFI_Error{"a function of XLA that is not here"}; }
const void *own_functions[OWN_FUNCTIONS];

XLA_FFI_Api interface() {
  const auto put = [](int place, auto function) {
    own_functions[place] = reinterpret_cast<const void *>(function);
  };
  for (int place = 0; place < OWN_FUNCTIONS; place++) put(place, unknown);
  put(PASS_ON, pass_on);
  put(PLACE_OF_STATE, place_of_state);
  put(STREAM, xla_stream_of);
  put(CAPABILITY, capability_of);
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  api.api_version.major_version = XLA_FFI_API_MAJOR;
  api.api_version.minor_version = XLA_FFI_API_MINOR;
  api.internal_api = reinterpret_cast<decltype(api.internal_api)>(own_functions);
  api.XLA_FFI_Error_Create = create_error;
  api.XLA_FFI_Error_Destroy = destroy_error;
  api.XLA_FFI_Error_GetDetails = message_of;
  api.XLA_FFI_Stream_Get = stream_of;
  api.XLA_FFI_Type_Register = register_type;
  api.XLA_FFI_State_Set = set_state;
  api.XLA_FFI_State_Get = get_state;
  return api;
}

}  // namespace

// An operand or a result: XLA's dtype, and memory that the caller owns.
struct Array {
  int dtype, rank;
  int64_t *dims;
  void *data;
};

// Calls ``handler`` for one stage with the string attribute ``opaque``, for a GPU of this compute
// capability. Returns 0, or 1 and the message of its error.
extern "C" int call(XLA_FFI_Handler *handler, int stage, int major, int minor, const char *opaque,
                    size_t length, const Array *arrays, int operands, int results, char *message,
                    size_t room) {
  static const XLA_FFI_Api api = interface();
  if (stage == XLA_FFI_ExecutionStage_INSTANTIATE) {
    std::fill(&kept[0][0], &kept[0][0] + sizeof kept / sizeof kept[0][0], 0);
  }
  capability[0] = major;
  capability[1] = minor;
  int context = 0;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = &api;
  frame.ctx = reinterpret_cast<decltype(frame.ctx)>(&context);
  frame.stage = static_cast<XLA_FFI_ExecutionStage>(stage);

  const int all = operands + results;
  std::vector<XLA_FFI_Buffer> buffers(all);
  std::vector<void *> pointers(all);
  std::vector<XLA_FFI_ArgType> argument_types(all, XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> result_types(all, XLA_FFI_RetType_BUFFER);
  for (int i = 0; i < all; i++) {
    buffers[i].struct_size = XLA_FFI_Buffer_STRUCT_SIZE;
    buffers[i].dtype = static_cast<XLA_FFI_DataType>(arrays[i].dtype);
    buffers[i].data = arrays[i].data;
    buffers[i].rank = arrays[i].rank;
    buffers[i].dims = arrays[i].dims;
    pointers[i] = &buffers[i];
  }
  frame.args.struct_size = XLA_FFI_Args_STRUCT_SIZE;
  frame.rets.struct_size = XLA_FFI_Rets_STRUCT_SIZE;
  if (stage != XLA_FFI_ExecutionStage_INSTANTIATE) {  // arrays come later
    frame.args.size = operands;
    frame.args.types = argument_types.data();
    frame.args.args = pointers.data();
    frame.rets.size = results;
    frame.rets.types = result_types.data();
    frame.rets.rets = pointers.data() + operands;
  }

  XLA_FFI_ByteSpan name{"opaque", 6}, value{opaque, length};
  XLA_FFI_ByteSpan *names[] = {&name};
  XLA_FFI_AttrType kinds[] = {XLA_FFI_AttrType_STRING};
  void *values[] = {&value};
  frame.attrs.struct_size = XLA_FFI_Attrs_STRUCT_SIZE;
  frame.attrs.size = 1;
  frame.attrs.types = kinds;
  frame.attrs.names = names;
  frame.attrs.attrs = values;

  XLA_FFI_Error *error = handler(&frame);
  if (!error) return 0;
  snprintf(message, room, "%s", error->message.c_str());
  delete error;
  return 1;
}
